"""Every further family computes what transformers' own model does, and drafters leave its tokens as they are."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.backends.torch.backend import TorchBackend
from headstart.loading import Model, load_model
from more_families import MORE_FAMILIES
from passes import BLOCK_SIZE, Rows, make_pass
from tiny_checkpoint import write_tokenizer
from tiny_models import make_model, reference_logits

PROMPTS = [random.Random(length).choices(range(3, 250), k=length) for length in (5, 23, 60)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
DRAFTERS = ("suffix", "early-exit", "auto")


@dataclass(frozen=True)
class Case:
    reference: PreTrainedModel
    model: Model


@pytest.fixture(scope="module", params=MORE_FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    directory: Path = tmp_path_factory.mktemp("model")
    reference = make_model(request.param)
    reference.save_pretrained(directory)
    write_tokenizer(directory)
    return Case(reference, load_model(directory, "fp32"))


def test_logits_equal_transformers(case: Case) -> None:
    backend = case.model.backend
    assert isinstance(backend, TorchBackend)
    for tokens in PROMPTS:
        blocks = -(-len(tokens) // BLOCK_SIZE)
        storage = backend.allocate_cache(blocks, BLOCK_SIZE)
        logits = backend.forward(make_pass([Rows(tokens, 0, range(blocks))]), storage).logits
        assert (logits - reference_logits(case.reference, tokens)).abs().max().item() <= 1e-4


def test_greedy_tokens_are_transformers_with_every_drafter(case: Case) -> None:
    plain = LLM(case.model, drafter="suffix").generate(PROMPTS, GREEDY, speculation=SpeculationParams(enabled=False))
    wanted = [out.token_ids for out in plain]
    for prompt, tokens in zip(PROMPTS, wanted, strict=True):
        # Each token is the best one after those before it: what decoding token by token gives.
        best = reference_logits(case.reference, [*prompt, *tokens]).argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == tokens
    for drafter in DRAFTERS:
        assert [out.token_ids for out in LLM(case.model, drafter=drafter).generate(PROMPTS, GREEDY)] == wanted, drafter
