"""A drafter that knows the target's logits foresees what it will say, whatever the request's sampling."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from headstart.drafting.base import SpeculationParams
from headstart.drafting.head_trees.noise_ranking import NoiseRanking
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms

VOCAB = 500
SETTINGS: tuple[dict[str, float], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.4},
    {"temperature": 2.5},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
)


@dataclass
class View:
    """As much of a sequence as the ranking looks at."""

    params: SamplingParams
    noise: SequenceNoise
    tokens: list[int] = field(default_factory=lambda: [1, 2, 3])
    speculation: SpeculationParams = field(default_factory=SpeculationParams)


def logits_of(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def view(seed: int = 0, speculation: SpeculationParams | None = None, **params: float) -> View:
    return View(SamplingParams(**params), SequenceNoise(seed), speculation=speculation or SpeculationParams())  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_best_score_is_what_the_target_says(settings: dict[str, float]) -> None:
    agreed = 0
    for seed in range(60):
        sequence, logits = view(seed, **settings), logits_of(1, 2, seed=seed)
        scores = NoiseRanking([sequence], torch.arange(VOCAB), VOCAB).scores(logits, depth=2)
        for beam in range(2):
            said = Transforms(sequence.params, VOCAB).sample(logits[0, beam], sequence.noise, len(sequence.tokens) + 1)
            agreed += int(scores[0, beam].argmax()) == said
    assert agreed == 120


def test_softmax_of_scores_favours_what_noise_favours() -> None:
    """With logits that are off by noise of their own, what is scored higher is said more often."""
    said_first = said_second = without = 0
    for seed in range(400):
        sequence, logits = view(seed, temperature=1.0), logits_of(1, 1, seed=seed)
        target = logits[0, 0] + 0.5 * logits_of(seed=seed + 10_000)
        said = Transforms(sequence.params, VOCAB).sample(target, sequence.noise, len(sequence.tokens))
        best = NoiseRanking([sequence], torch.arange(VOCAB), VOCAB).scores(logits, 1)[0, 0].topk(2).indices.tolist()
        said_first += said == best[0]
        said_second += said == best[1]
        without += said == int(logits[0, 0].argmax())
    assert said_first > 2 * said_second
    assert said_first > 1.5 * without


def test_columns_may_stand_for_any_tokens() -> None:
    sequence, logits = view(7, temperature=1.0), logits_of(1, 1)
    whole = NoiseRanking([sequence], torch.arange(VOCAB), VOCAB).scores(logits, 1)
    ids = torch.tensor([499, 3, 250, 8])
    assert torch.equal(NoiseRanking([sequence], ids, VOCAB).scores(logits[..., ids], 1), whole[..., ids])


def test_padding_columns_are_no_error() -> None:
    ids = torch.tensor([VOCAB - 1, VOCAB, VOCAB + 5])
    scores = NoiseRanking([view(temperature=1.0)], ids, VOCAB).scores(torch.zeros(1, 1, 3), 1)
    assert scores.isfinite().all()


def test_greedy_requests_keep_their_logits_also_beside_others() -> None:
    greedy, sampled, logits = view(temperature=0.0), view(temperature=1.0), logits_of(2, 3)
    ids = torch.arange(VOCAB)
    assert NoiseRanking([greedy, greedy], ids, VOCAB).scores(logits, 1) is logits
    mixed = NoiseRanking([greedy, sampled], ids, VOCAB).scores(logits, 1)
    assert torch.equal(mixed[0], logits[0])
    assert torch.equal(mixed[1:], NoiseRanking([sampled], ids, VOCAB).scores(logits[1:], 1))


@pytest.mark.parametrize("lossy", [SpeculationParams(typical=0.09), SpeculationParams(lenience=0.5)])
def test_lossy_rules_do_not_look_at_the_noise(lossy: SpeculationParams) -> None:
    logits = logits_of(1, 1)
    scores = NoiseRanking([view(speculation=lossy, temperature=0.5)], torch.arange(VOCAB), VOCAB).scores(logits, 1)
    assert torch.equal(scores, logits / 0.5)


def test_each_depth_has_noise_of_its_own() -> None:
    ranking, logits = NoiseRanking([view(temperature=1.0)], torch.arange(VOCAB), VOCAB), torch.zeros(1, 1, VOCAB)
    best = {int(ranking.scores(logits, depth).argmax()) for depth in range(1, 9)}
    assert len(best) > 4
