"""Drafters that look at the target's own noise: the law by enumeration, over several rounds that share that noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.common.enumerations import VerifyRule
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import IdArray
from headstart_lab.audit.cases import draft_chain, random_model
from headstart_lab.audit.oracle import (
    Branches,
    EnumeratedNoise,
    Model,
    Tokens,
    enumerate_runs,
    largest_error,
    product_law,
    run_round,
)

VOCAB, LENGTH = 3, 3
RULES = [VerifyRule.AUTO, VerifyRule.REJECTION, VerifyRule.BLOCK, VerifyRule.COUPLED]


Bounds = dict[int, list[float]]
"""Position -> where a law of a token there changes from one token to the next."""


class ForeseenNoise(EnumeratedNoise):
    """Noise that stays what it is from round to round, and that a drafter may look at.

    The coupled draw at a position is the inverse distribution function of one uniform number. That number is a branch
    over the intervals between all the bounds that any law at this position has, so each run knows it exactly as far
    as anybody can ask.
    """

    def __init__(self, branches: Branches, bounds: Bounds) -> None:
        super().__init__(branches)
        self._bounds = bounds
        self._uniforms: dict[int, tuple[int, float]] = {}

    def glimpse(self, position: int) -> int:
        """Which of its intervals the number at ``position`` lies in."""
        return self._at(position)[0]

    def pick(self, position: int, weights: NDArray[np.float64]) -> int:
        return int(np.searchsorted(np.cumsum(weights), self._at(position)[1], side="right"))

    def draw_at(self, position: int, vocab_size: int, weights: NDArray[np.float64], ids: IdArray | None = None) -> int:
        return self.pick(position, weights)

    def _at(self, position: int) -> tuple[int, float]:
        if position not in self._uniforms:
            bounds = self._bounds[position]
            widths = np.diff(bounds)
            chosen = self._branches.choose(widths.tolist())
            self._uniforms[position] = chosen, bounds[chosen] + widths[chosen] / 2
        return self._uniforms[position]


def contexts(length: int) -> Iterator[Tokens]:
    if length == 0:
        yield ()
    else:
        for before in contexts(length - 1):
            for token in range(VOCAB):
                yield (*before, token)


def bounds_of(target: Model) -> Bounds:
    """Beyond the text's end nothing matters: one interval there, and enumeration ends."""
    bounds = {position: [0.0, 1.0] for position in range(LENGTH + 1, 2 * LENGTH + 2)}
    for position in range(1, LENGTH + 1):
        laws = [target(tokens).numpy() for tokens in contexts(position - 1)]
        bounds[position] = sorted({0.0, 1.0, *(float(bound) for law in laws for bound in np.cumsum(law)[:-1])})
    return bounds


Guess = Callable[[ForeseenNoise, int, Tokens], DraftTree]


def foresees(target: Model, draft: Model) -> Guess:
    """Gumbel coupling's kind: the draft's own choice at the same noise, two tokens deep."""

    def propose(noise: ForeseenNoise, root: int, tokens: Tokens) -> DraftTree:
        first = noise.pick(root + 1, draft(tokens).numpy())
        second = noise.pick(root + 2, draft((*tokens, first)).numpy())
        return DraftTree.chain([first, second])

    return propose


def knows(target: Model, draft: Model) -> Guess:
    """Guesses what the target will say, nothing else."""
    return foresees(target, target)


def avoids(target: Model, draft: Model) -> Guess:
    """Guesses all but what the target will say, or nothing, or everything, as the noise of later positions has it."""

    def propose(noise: ForeseenNoise, root: int, tokens: Tokens) -> DraftTree:
        said = noise.pick(root + 1, target(tokens).numpy())
        kind = noise.glimpse(root + 2) % 3
        others = [[token] for token in range(VOCAB) if kind == 1 or token != said]
        return DraftTree.empty() if kind == 0 else DraftTree.from_paths(others, VOCAB)

    return propose


def reshapes(target: Model, draft: Model) -> Guess:
    """The tree's shape and tokens are an arbitrary function of the noise ahead."""

    def propose(noise: ForeseenNoise, root: int, tokens: Tokens) -> DraftTree:
        seen = noise.glimpse(root + 1) + 7 * noise.glimpse(root + 2)
        paths = [[(seen + k) % VOCAB, (seen // (k + 1)) % VOCAB][: 1 + (seen + k) % 2] for k in range(seen % 4)]
        return DraftTree.from_paths(paths, 6)

    return propose


def joint_law(target: Model, propose: Guess, rule: VerifyRule) -> tuple[dict[Tokens, float], float]:
    """The law of LENGTH tokens, however many rounds they take, and the mean tokens of the first round."""
    law: dict[Tokens, float] = defaultdict(float)
    bounds, lengths = bounds_of(target), 0.0

    def run(branches: Branches) -> tuple[Tokens, int]:
        noise, tokens, first = ForeseenNoise(branches, bounds), (), 0
        while len(tokens) < LENGTH:
            said = run_round(target, propose, noise, tokens, rule=rule)  # type: ignore[arg-type]
            tokens += said
            first = first or len(said)
        return tokens[:LENGTH], first

    for probability, (tokens, first) in enumerate_runs(run):
        law[tokens] += probability
        lengths += probability * first
    return law, lengths


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("make", [foresees, knows, avoids, reshapes])
def test_whatever_is_guessed_from_the_noise_the_law_is_the_targets(
    make: Callable[[Model, Model], Guess], rule: VerifyRule
) -> None:
    target, draft = random_model(VOCAB, 1), random_model(VOCAB, 2)
    law, _ = joint_law(target, make(target, draft), rule)
    assert largest_error(law, product_law(target, LENGTH)) < 1e-12


def test_who_foresees_is_accepted_more_often() -> None:
    target, draft = random_model(VOCAB, 1), random_model(VOCAB, 2)

    def blind(noise: ForeseenNoise, root: int, tokens: Tokens) -> DraftTree:
        first = int(draft(tokens).argmax())
        return DraftTree.chain([first, int(draft((*tokens, first)).argmax())])

    lengths = [
        joint_law(target, propose, VerifyRule.AUTO)[1]
        for propose in (blind, foresees(target, draft), knows(target, draft))
    ]
    assert lengths[0] < lengths[1] < lengths[2]
    assert lengths[2] == pytest.approx(3)


def test_a_request_must_not_choose_between_draws_and_guesses_by_the_noise() -> None:
    """Which rule decides a token would depend on the noise that decides it: biased, so no drafter may do it."""
    target, draft = random_model(VOCAB, 1), random_model(VOCAB, 2)
    guess, draw = foresees(target, draft), draft_chain(draft, 1)

    def propose(noise: ForeseenNoise, root: int, tokens: Tokens) -> DraftTree:
        if root > 0:
            return DraftTree.empty()
        return (guess if noise.glimpse(root + 1) == 0 else draw)(noise, root, tokens)

    law, _ = joint_law(target, propose, VerifyRule.REJECTION)
    assert largest_error(law, product_law(target, LENGTH)) > 0.01
    coupled, _ = joint_law(target, propose, VerifyRule.COUPLED)
    assert largest_error(coupled, product_law(target, LENGTH)) < 1e-12
