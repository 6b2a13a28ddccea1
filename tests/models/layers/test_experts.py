"""Mixtures of experts against what is written down for one row at a time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from headstart.backends.torch.channels import Experts
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.layers.experts import choose_experts, run_experts
from headstart.models.linear_weights import LinearWeights
from headstart.models.weights import ExpertsWeights, MlpWeights

HIDDEN, SIZE, COUNT, ROWS = 64, 64, 8, 21
CONFIGS = {
    "softmax": ExpertsConfig(COUNT, 3, SIZE, normalised=True),
    "shared": ExpertsConfig(COUNT, 2, SIZE, shared_size=40, shared_gate=True),
    "groups": ExpertsConfig(COUNT, 3, SIZE, groups=4, groups_used=2),
    "sigmoid": ExpertsConfig(
        COUNT, 3, SIZE, score="sigmoid", correction=True, groups=4, groups_used=2, group_score="two_best", scale=2.5
    ),
    "cut off": ExpertsConfig(COUNT, 4, SIZE, normalised=True, clamp=0.7),
}


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * shape[-1] ** -0.5


def weights_for(config: ExpertsConfig) -> ExpertsWeights:
    def mlp(seed: int, size: int = SIZE) -> MlpWeights:
        up, down = random(2 * size, HIDDEN, seed=seed), random(HIDDEN, size, seed=seed + 100)
        return MlpWeights(LinearWeights(3 * up), LinearWeights(down))

    return ExpertsWeights(
        router=LinearWeights(4 * random(COUNT, HIDDEN, seed=1)),
        experts=tuple(mlp(10 + i) for i in range(COUNT)),
        correction=random(1, COUNT, seed=2)[0] if config.correction else None,
        shared=mlp(50, config.shared_size) if config.shared_size else None,
        shared_gate=LinearWeights(random(1, HIDDEN, seed=3)) if config.shared_gate else None,
    )


@dataclass
class Case:
    config: ExpertsConfig
    weights: ExpertsWeights
    channel: Experts
    rows: Tensor


@pytest.fixture(params=CONFIGS)
def case(request: pytest.FixtureRequest) -> Case:
    torch.set_num_threads(1)
    config = CONFIGS[request.param]
    weights = weights_for(config)
    model = ModelConfig("mixtral", 10, HIDDEN, 2, 2, 32, SIZE, 64, (LayerConfig(channel="experts"),), experts=config)
    channel = Experts(model, LayerConfig(), weights, torch.float32, torch.device("cpu"))
    return Case(config, weights, channel, 8 * random(ROWS, HIDDEN, seed=9))


def by_hand(case: Case, row: Tensor) -> Tensor:
    """One row, expert by expert, with nothing but the definitions."""
    config, weights = case.config, case.weights
    logits = weights.router.weight @ row
    scores = torch.sigmoid(logits) if config.score == "sigmoid" else torch.softmax(logits, 0)
    ranked = scores.clone() if weights.correction is None else scores + weights.correction
    width = COUNT // config.groups
    worth = []
    for group in range(config.groups):
        members = sorted(ranked[group * width : (group + 1) * width].tolist(), reverse=True)
        worth.append(sum(members[: 1 if config.group_score == "best" else 2]))
    good = sorted(range(config.groups), key=lambda group: -worth[group])[: config.groups_used]
    allowed = [expert for expert in range(COUNT) if expert // width in good]
    chosen = sorted(allowed, key=lambda expert: -float(ranked[expert]))[: config.used]
    total = sum(float(scores[expert]) for expert in chosen) if config.normalised else 1.0
    result = torch.zeros(HIDDEN)
    for expert in chosen:
        result += float(scores[expert]) / total * config.scale * gated(weights.experts[expert], row, config.clamp)
    if weights.shared is not None:
        assert weights.shared_gate is not None
        result += torch.sigmoid(weights.shared_gate.weight @ row) * gated(weights.shared, row, None)
    return result


def gated(mlp: MlpWeights, row: Tensor, limit: float | None) -> Tensor:
    gate, up = (mlp.up.weight @ row).chunk(2)
    if limit is None:
        return mlp.down.weight @ (gate * torch.sigmoid(gate) * up)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return mlp.down.weight @ ((up + 1) * gate * torch.sigmoid(1.702 * gate))


def test_it_is_what_is_written_down(case: Case) -> None:
    mixed = case.channel(case.rows)
    expected = torch.stack([by_hand(case, row) for row in case.rows])
    torch.testing.assert_close(mixed, expected, rtol=1e-4, atol=1e-5)


def test_a_row_does_not_depend_on_which_others_call_its_experts(case: Case) -> None:
    """Up to roundings of PyTorch's products, which may differ by the number of rows."""

    def assert_same(found: Tensor, expected: Tensor) -> None:
        assert (found - expected).abs().max() <= 4e-6 * expected.abs().max()

    together = case.channel(case.rows)
    for row in range(ROWS):
        assert_same(case.channel(case.rows[row : row + 1]), together[row : row + 1])
    assert_same(case.channel(case.rows[5:13]), together[5:13])


def test_an_expert_is_run_once_a_pass_and_only_if_it_is_called(case: Case) -> None:
    calls: list[int] = []

    def counting(number: int, up: object) -> object:
        def called(x: Tensor) -> Tensor:
            calls.append(number)
            return up(x)  # type: ignore[operator]

        return called

    for number, expert in enumerate(case.channel.experts):
        expert.up = counting(number, expert.up)  # type: ignore[assignment]
    run_experts(case.config, case.channel, case.rows[:3], "silu")
    chosen, _ = choose_experts(case.config, case.rows[:3] @ case.weights.router.weight.T, case.weights.correction)
    assert calls == sorted(set(chosen.flatten().tolist()))
