"""Every further family computes what transformers' own model does, and drafters leave its tokens as they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.backends.torch.backend import TorchBackend
from headstart.loading import load_model
from more_families import MORE_FAMILIES
from passes import BLOCK_SIZE, Rows, make_pass
from tiny_checkpoint import write_tokenizer
from tiny_models import make_model, reference_logits

PROMPTS = [random.Random(length).choices(range(3, 250), k=length) for length in (5, 23, 60)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PLAIN = SpeculationParams(enabled=False)


@pytest.mark.parametrize("family", MORE_FAMILIES)
def test_logits_and_tokens_are_transformers_with_every_drafter(family: str, tmp_path: Path) -> None:
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
        blocks = -(-len(text) // BLOCK_SIZE)
        storage = backend.allocate_cache(blocks, BLOCK_SIZE)
        logits = backend.forward(make_pass([Rows(text, 0, range(blocks))]), storage).logits
        assert (logits - expected).abs().max().item() <= 1e-4
        # What decoding token by token gives: each is the best one after those before it.
        assert expected.argmax(-1)[len(prompt) - 1 : -1].tolist() == tokens
    for drafter in ("suffix", "early-exit", "auto"):
        assert [out.token_ids for out in LLM(model, drafter=drafter).generate(PROMPTS, GREEDY)] == plain, drafter
