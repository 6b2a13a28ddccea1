"""Adapters of requests: rows of different ones in one pass, what keeps them apart, and how they come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from adapter_toys import write_adapter, write_merged
from head_toys import shake
from native_here import needs_native
from tiny_checkpoint import write_tiny_model
from tiny_encoder_decoders import make_model, save_model

from headstart import LLM, AsyncLLM, ConfigError, LoRARequest, RequestError, SamplingParams
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.loading.lending import identity_of
from headstart.loading.model import load_model
from headstart_train.files.heads import save_head
from headstart_train.first_steps.eagle import eagle_config

NAMES = ("red", "green", "blue", "grey")
WHOSE = [*NAMES, None] * 3 + ["red"]
PROMPTS = [f"{'over and over ' * (1 + index % 3)}{index}" for index in range(len(WHOSE))]
ANSWER = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
PRECISIONS = ("fp32", "bf16", "int8", "int4", "auto")


class Toys:
    """A model and four adapters of it."""

    def __init__(self, root: Path, head_dim: int) -> None:
        (root / "model").mkdir()
        self.model = write_tiny_model(root / "model", head_dim=head_dim)
        self.lora = {name: str(write_adapter(root / name, self.model, seed)) for seed, name in enumerate(NAMES)}
        self.merged = write_merged(root / "merged", self.model, Path(self.lora["red"]))


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    """The native pass computes it."""
    return Toys(tmp_path_factory.mktemp("adapted"), 32)


@pytest.fixture(scope="module")
def torch_toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    """PyTorch computes it."""
    return Toys(tmp_path_factory.mktemp("adapted"), 8)


def texts(llm: LLM, params: SamplingParams = ANSWER) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, params, lora_request=WHOSE)]


def alone(llm: LLM, params: SamplingParams = ANSWER) -> list[list[int]]:
    pairs = zip(PROMPTS, WHOSE, strict=True)
    return [llm.generate([prompt], params, lora_request=whose)[0].token_ids for prompt, whose in pairs]


@needs_native
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_texts_of_a_mixed_batch_are_those_of_each_alone(toys: Toys, precision: str) -> None:
    options = {"precision": precision, "lora": toys.lora, "prefix_caching": True}
    llm = LLM(toys.model, "none", **options)
    wanted = alone(LLM(toys.model, "none", precision=precision, lora=toys.lora))
    assert texts(llm) == wanted
    assert texts(llm) == wanted  # now with prefixes of before
    assert len({tuple(each) for each in wanted}) > 12
    bare = LLM(toys.model, "none", precision=precision).generate(PROMPTS, ANSWER)
    assert [a == b.token_ids for a, b in zip(wanted, bare, strict=True)] == [whose is None for whose in WHOSE]
    drawn = SamplingParams(temperature=1.0, max_tokens=12, seed=5, ignore_eos=True)
    wanted_draws = alone(llm, drawn)
    for drafter in ("suffix", "auto"):
        drafted = LLM(toys.model, drafter, **options)
        assert texts(drafted) == wanted
        assert texts(drafted, drawn) == wanted_draws


@needs_native
@pytest.mark.parametrize("drafter", ["eagle3", "draft-model", "self"])
def test_what_guesses_unchanged_goes_on_guessing(toys: Toys, tmp_path: Path, drafter: str) -> None:
    wanted = alone(LLM(toys.model, "none", precision="bf16", lora=toys.lora))
    model = toys.model
    if drafter == "eagle3":
        target = load_model(toys.model, "bf16")
        head = EagleHead(eagle_config(target.config, "eagle3", None))
        shake(head, 3)
        model = tmp_path / "head"
        save_head(head, model, record={"head": "eagle3", "target": "tiny", **identity_of(target).record()})
    options = {} if drafter == "self" else {"draft_model": model}
    llm = LLM(toys.model, drafter, precision="bf16", lora=toys.lora, **options)
    outputs = llm.generate(PROMPTS, ANSWER, lora_request=WHOSE)
    assert [output.token_ids for output in outputs] == wanted
    assert all(output.stats.drafted for output in outputs)


@needs_native
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_rows_bits_do_not_depend_on_whose_adapters_ride_beside(toys: Toys, precision: str) -> None:
    llm = LLM(toys.model, "none", precision=precision, lora=toys.lora)
    shown = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=1, ignore_eos=True)

    def numbers(prompts: list[str], whose: list[str | None]) -> list[object]:
        outputs = llm.generate(prompts, shown, lora_request=whose)
        return [(output.outputs[0].logprobs, output.prompt_logprobs) for output in outputs]

    together = numbers(PROMPTS, WHOSE)
    singly = [numbers([prompt], [whose])[0] for prompt, whose in zip(PROMPTS, WHOSE, strict=True)]
    assert repr(together) == repr(singly)


@pytest.mark.parametrize("kind", [pytest.param("toys", marks=needs_native), "torch_toys"])
def test_an_adapter_changes_the_law_as_the_merged_model_has_it(kind: str, request: pytest.FixtureRequest) -> None:
    toys: Toys = request.getfixturevalue(kind)
    llm = LLM(toys.model, "none", precision="fp32", lora=toys.lora)
    merged = LLM(toys.merged, "none", precision="fp32")
    shown = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    (found,), (wanted,) = (
        each.generate(["a text of some length"], shown, lora_request=whose)
        for each, whose in ((llm, "red"), (merged, None))
    )
    laws = [
        [entry.logprob for entry in output.prompt_logprobs or () if entry is not None] for output in (found, wanted)
    ]
    torch.testing.assert_close(*map(torch.tensor, laws), atol=1e-4, rtol=1e-4)


@pytest.mark.thorough
@needs_native
def test_adapters_decode_over_a_cache_of_8_bits(toys: Toys) -> None:
    """Mixed as alone, with guesses as without, and as the merged model with such a cache."""
    options = {"precision": "fp32", "cache_type": "q8_0", "max_batch_size": 16}
    wanted = alone(LLM(toys.model, "none", lora=toys.lora, **options))
    llm = LLM(toys.model, "suffix", lora=toys.lora, prefix_caching=True, **options)
    assert texts(llm) == wanted
    assert alone(llm) == wanted  # from kept blocks
    merged = LLM(toys.merged, "none", **options)
    red = [index for index, whose in enumerate(WHOSE) if whose == "red"]
    said = merged.generate([PROMPTS[index] for index in red], ANSWER)
    assert [output.token_ids for output in said] == [wanted[index] for index in red]
    assert len({tuple(each) for each in wanted[:5]}) > 1


def test_pytorch_mixes_adapters(torch_toys: Toys) -> None:
    llm = LLM(torch_toys.model, "none", precision="fp32", lora=torch_toys.lora)
    wanted = alone(llm)
    assert texts(llm) == wanted
    assert texts(LLM(torch_toys.model, "suffix", precision="fp32", lora=torch_toys.lora)) == wanted
    assert len({tuple(each) for each in wanted}) > 12


def test_beams_keep_their_adapter(torch_toys: Toys) -> None:
    search = SamplingParams(beam_width=2, n=2, max_tokens=6, temperature=0)
    llm = LLM(torch_toys.model, "none", precision="fp32", lora=torch_toys.lora)
    (found,) = llm.generate(["a search"], search, lora_request="red")
    (wanted,) = LLM(torch_toys.merged, "none", precision="fp32").generate(["a search"], search)
    assert [each.token_ids for each in found.outputs] == [each.token_ids for each in wanted.outputs]


def test_adapters_are_loaded_when_a_call_brings_them(torch_toys: Toys) -> None:
    llm = LLM(torch_toys.model, "none", lora=[f"red={torch_toys.lora['red']}"])
    given = LoRARequest("green", 2, torch_toys.lora["green"])
    (mine,) = llm.generate(["a text"], ANSWER, lora_request=given)
    assert list(llm.adapters) == ["red", "green"]
    assert llm.generate(["a text"], ANSWER, lora_request=LoRARequest("green", 2))[0].token_ids == mine.token_ids
    chat = llm.chat([{"role": "user", "content": "hello"}], ANSWER, lora_request="red")[0].token_ids
    assert chat != llm.chat([{"role": "user", "content": "hello"}], ANSWER)[0].token_ids

    async def streamed() -> list[int]:
        async with AsyncLLM(torch_toys.model, "none") as front:
            outputs = [each async for each in front.generate("a text", ANSWER, lora_request=given)]
            return outputs[-1].token_ids

    assert asyncio.run(streamed()) == mine.token_ids


def test_what_runs_keeps_its_adapter_when_that_is_unloaded(torch_toys: Toys) -> None:
    llm = LLM(torch_toys.model, "none", lora=torch_toys.lora)
    (wanted,) = llm.generate(["a text"], ANSWER, lora_request="red")
    samples = llm.adapted("red").samples(llm.encode("a text"), ANSWER)
    del llm.adapters["red"]
    llm.adapters.load("red", torch_toys.lora["blue"])
    llm.decode(samples)
    assert samples[0].sequence.output == wanted.token_ids
    assert llm.generate(["a text"], ANSWER, lora_request="red")[0].token_ids != wanted.token_ids


def test_what_cannot_be_had_is_refused_with_a_sentence(torch_toys: Toys, tmp_path: Path) -> None:
    llm = LLM(torch_toys.model, "none", lora={"red": torch_toys.lora["red"]})
    (tmp_path / "wide").mkdir()
    wide = write_adapter(tmp_path / "other", write_tiny_model(tmp_path / "wide", head_dim=16))
    for wish, message in (
        ("pink", "no adapter 'pink' is loaded; there is 'red'"),
        (LoRARequest("pink", 1, str(tmp_path / "nowhere")), "nowhere"),
        (LoRARequest("pink", 1, str(wide)), "give the adapter of this very model"),
        (LoRARequest("red", 1, torch_toys.lora["blue"]), "unload it first"),
        (LoRARequest("", 1, torch_toys.lora["blue"]), "is empty"),
        (7, "give a LoRARequest"),
    ):
        with pytest.raises(RequestError, match=message):
            llm.generate(["a text"], ANSWER, lora_request=wish)
    with pytest.raises(RequestError, match="2 adapters were given for 1 prompts"):
        llm.generate(["a text"], ANSWER, lora_request=["red", "red"])
    with pytest.raises(ConfigError, match="lora is 'y', which is not of the form KEY=VALUE, like sql=adapters/sql"):
        LLM(torch_toys.model, "none", lora=["a=x", "y"])
    t5 = LLM(save_model(make_model("t5"), tmp_path / "t5"), "none")
    with pytest.raises(RequestError, match="take no adapters"):
        t5.adapters.load("red", torch_toys.lora["red"])
