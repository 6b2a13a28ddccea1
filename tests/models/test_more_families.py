"""Every further family computes what transformers' own model does, and drafters leave its tokens as they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from more_families import MORE_FAMILIES
from safetensors.torch import load_file, save_file
from thinning import thorough_but
from tiny_checkpoint import write_tokenizer
from tiny_models import make_model, reference_logits
from torch import Tensor

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.backends.torch.backend import TorchBackend
from headstart.loading.model import load_model
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from passes import BLOCK_SIZE, Rows, make_pass

PROMPTS = [random.Random(length).choices(range(3, 250), k=length) for length in (5, 23, 60)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TEXT = [3 + (7 * i * i + i) % 250 for i in range(40)]
PLAIN = SpeculationParams(enabled=False)
FEW = (
    *("gpt2-relu", "llama-partial", "olmo", "gpt_bigcode-mha", "llava", "qwen2_5_vl", "llama4-seeing"),
    *("dbrx-unnormalised", "gemma4_text-experts", "mamba-biased", "qwen3_5_moe_text", "bailing_hybrid-biased"),
)
"""Those of ``make test``: most are none of ``test_native_families.py`` or ``test_kinds_of_layers.py``."""


@pytest.mark.parametrize("family", thorough_but(FEW, MORE_FAMILIES))
def test_logits_and_tokens_are_transformers_with_every_drafter(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PyTorch; ``test_native_families.py`` has those of the native pass, which takes some of these sizes, too."""
    monkeypatch.setenv("HEADSTART_NATIVE", "0")
    torch.set_num_threads(1)
    reference = make_model(family)
    reference.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model = load_model(tmp_path, "fp32")
    backend = model.backend
    assert isinstance(backend, TorchBackend)
    plain = [out.token_ids for out in LLM(model, drafter="suffix").generate(PROMPTS, GREEDY, speculation=PLAIN)]
    for prompt, tokens in zip(PROMPTS, plain, strict=True):
        text = [*prompt, *tokens]
        expected = reference_logits(reference, text)
        assert (logits_of(backend, text) - expected).abs().max().item() <= 1e-4
        # What decoding token by token gives: each is the best one after those before it.
        assert expected.argmax(-1)[len(prompt) - 1 : -1].tolist() == tokens
    for drafter in ("suffix", "early-exit", "auto"):
        assert [out.token_ids for out in LLM(model, drafter=drafter).generate(PROMPTS, GREEDY)] == plain, drafter


def logits_of(backend: TorchBackend, text: list[int]) -> Tensor:
    blocks = -(-len(text) // BLOCK_SIZE)
    storage = backend.allocate_cache(blocks, BLOCK_SIZE)
    return backend.forward(make_pass([Rows(text, 0, range(blocks))]), storage).logits


def test_stacked_experts_may_stand_either_way(tmp_path: Path) -> None:
    """Qwen3-VL's mixtures were released with matrices [in, out]; transformers saves them the other way round."""
    reference = make_model("qwen3_vl_moe")
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    found = logits_of(TorchBackend(config, weights), TEXT)
    assert (found - reference_logits(reference, TEXT)).abs().max().item() <= 1e-4
