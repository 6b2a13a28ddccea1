"""Passes tell how many distinct experts their rows called, and rounds hand it on to the planner."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from tiny_models import make_model, save_model
from torch import Tensor
from toys import run_all, toy_engine, toy_sequence
from transformers import PreTrainedModel

from headstart.backends.torch.backend import TorchBackend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.passes.runner import ModelRunner, Span
from headstart.sampling.params import SamplingParams

MIXED = ("mixtral", "qwen3_moe")


@dataclass(frozen=True)
class Case:
    model: PreTrainedModel
    backend: TorchBackend


@cache
def load(family: str) -> Case:
    model = make_model(family)
    with TemporaryDirectory() as directory:
        config, weights = load_decoder(open_checkpoint(save_model(model, Path(directory))), torch.float32)
        return Case(model, TorchBackend(config, weights))


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 101), k=count)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def runner_of(family: str) -> ModelRunner:
    runner = ModelRunner(load(family).backend, 512)
    runner.cache.add(0)
    return runner


def called(runner: ModelRunner, tokens: list[int], num_layers: int | None = None) -> float | None:
    with runner.cache.reserve({0: len(tokens)}):
        (output,) = runner.forward([Span.chain(0, tokens)], num_layers=num_layers)
    return output.pass_experts


def routes(family: str, tokens: list[int]) -> list[Tensor]:
    """[layer][row, rank] the experts that transformers' routers choose."""
    case = load(family)
    assert case.backend.config.experts is not None
    with torch.no_grad():
        found = case.model(torch.tensor([tokens]), output_router_logits=True).router_logits
    return [logits.topk(case.backend.config.experts.used, dim=-1).indices for logits in found]


@pytest.mark.parametrize("family", MIXED)
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_the_count_is_that_of_transformers_routers(family: str, rows: int) -> None:
    tokens = random_tokens(rows, seed=rows)
    distinct = [len(set(chosen.flatten().tolist())) for chosen in routes(family, tokens)]
    assert called(runner_of(family), tokens) == pytest.approx(sum(distinct) / len(distinct))


def test_of_rows_that_follow_a_context_only_theirs_count() -> None:
    tokens, runner = random_tokens(12), runner_of("mixtral")
    with runner.cache.reserve({0: 9}):
        runner.forward([Span.chain(0, tokens[:9], "none")])
        runner.cache.commit(0, range(9))
    distinct = [len(set(chosen[9:].flatten().tolist())) for chosen in routes("mixtral", tokens)]
    assert called(runner, tokens[9:]) == pytest.approx(sum(distinct) / len(distinct))


def test_layers_that_are_dense_or_not_run_do_not_count() -> None:
    config = load("qwen2_moe").backend.config
    assert [layer.channel for layer in config.layers[:2]] == ["experts", "mlp"]
    assert called(runner_of("qwen2_moe"), [5]) == config.experts.used
    tokens = random_tokens(6)
    one, three = called(runner_of("mixtral"), tokens, num_layers=1), routes("mixtral", tokens)
    assert one == len(set(three[0].flatten().tolist()))


def test_a_dense_model_tells_nothing() -> None:
    assert called(runner_of("llama"), random_tokens(4)) is None


def test_rounds_hand_it_on() -> None:
    backend = load("mixtral").backend
    engine = toy_engine(backend, "suffix")
    heard = []
    observe = engine.drafter.observe

    def listen(outcomes) -> None:
        heard.append(outcomes)
        observe(outcomes)

    engine.drafter.observe = listen
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    run_all(engine, [toy_sequence(engine, [5, 6, 7] * 4, sequence_id=i, params=params) for i in range(2)])
    config = backend.config.experts
    assert any(outcome.committed for outcomes in heard for outcome in outcomes)
    for outcomes in heard:
        (experts,) = {outcome.pass_experts for outcome in outcomes}
        assert config.used <= experts <= min(config.count, config.used * outcomes[0].pass_rows)
