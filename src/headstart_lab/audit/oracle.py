"""Exact enumeration of what rounds say: every outcome of every draw, in float64, without sampling.

The production code runs as it is. Its noise is replaced by one that turns each random decision into a branch: a draw
branches over its weights, ``u * q < p`` over both sides of its threshold, with the probability that a uniform u has.
Running all branches gives the law of the output, which must be the target's (tests, and the audit).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headstart.common.enumerations import VerifyRule
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.noise import IdArray, SequenceNoise, Stream
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.verify import verify

T = TypeVar("T")
Tokens = tuple[int, ...]
"""Tokens after the prompt, the first of them at position 1 (the prompt's last token, the first root, is at 0)."""
NoiseKey = tuple[Stream, int, int]
"""Stream, position (of the round's root, or of the token), index."""
Model = Callable[[Tokens], Tensor]
"""Tokens so far -> law of the next one, float64 [vocab]."""


class Propose(Protocol):
    """A toy drafter: a tree after ``tokens``, whose draws come from ``noise`` keyed by ``root_position``."""

    def __call__(self, noise: SequenceNoise, root_position: int, tokens: Tokens) -> DraftTree: ...


class Verify(Protocol):
    """``verification.verify.verify``, or a mutant of it."""

    def __call__(
        self,
        tree: DraftTree,
        laws: NodeLaws,
        noise: SequenceNoise,
        root_position: int,
        rule: VerifyRule = ...,
        lenience: float | None = ...,
    ) -> Verdict: ...


class NoiseReusedError(AssertionError):
    """One noise key decided two things, which no rule may do."""


class Branches:
    """The random decisions of one run; ``enumerate_runs`` steers them."""

    def __init__(self, script: list[tuple[int, int]]) -> None:
        self._script = script
        self._step = 0
        self.probability = 1.0

    def choose(self, probabilities: Sequence[float]) -> int:
        """The index taken here, once for every index with a probability above 0; they sum to 1."""
        options = [index for index, probability in enumerate(probabilities) if probability > 0]
        if self._step == len(self._script):
            self._script.append((0, len(options)))
        taken = options[self._script[self._step][0]]
        self._step += 1
        self.probability *= probabilities[taken]
        return taken


def enumerate_runs(run: Callable[[Branches], T]) -> Iterator[tuple[float, T]]:
    """Every possible result of ``run`` with its probability (equal results may come several times)."""
    script: list[tuple[int, int]] = []
    while True:
        branches = Branches(script)
        result = run(branches)
        yield branches.probability, result
        while script and script[-1][0] + 1 == script[-1][1]:
            script.pop()
        if not script:
            return
        taken, count = script.pop()
        script.append((taken + 1, count))


class EnumeratedNoise(SequenceNoise):
    """Noise whose every number is a branch point. A uniform compared twice remembers what is known of it."""

    __slots__ = ("_branches", "_ranges", "_used")

    def __init__(self, branches: Branches) -> None:
        super().__init__(seed=0)
        self._branches = branches
        self._used: set[NoiseKey] = set()
        self._ranges: dict[NoiseKey, tuple[float, float]] = {}

    def uniform(self, stream: Stream, root: int, index: int) -> float:
        key = (stream, root, index)
        self._used.add(key)
        return ComparedUniform(self, key)

    def draw(self, stream: Stream, root: int, index: int, weights: Tensor) -> int:
        return self.draw_distinct(stream, root, index, weights, 1)[0]

    def draw_distinct(self, stream: Stream, root: int, index: int, weights: Tensor, count: int) -> list[int]:
        self._claim(stream, root, index)
        left: list[float] = weights.tolist()
        tokens: list[int] = []
        while len(tokens) < count and (mass := math.fsum(left)) > 0:
            tokens.append(self._branches.choose([weight / mass for weight in left]))
            left[tokens[-1]] = 0.0
        if not tokens:
            raise ValueError("no weight is above 0; there is nothing to draw")
        return tokens

    def draw_at(self, position: int, vocab_size: int, weights: NDArray[np.float64], ids: IdArray | None = None) -> int:
        self._claim(Stream.TARGET, position, 0)
        chosen = self._branches.choose([float(weight) for weight in weights / weights.sum()])
        return chosen if ids is None else int(ids[chosen])

    def contenders(self, position: int, row: NDArray[np.float32], temperature: float, floor: float) -> None:
        """Not known before the branch is chosen."""

    def position_exponentials(self, position: int, vocab_size: int, ids: Tensor | None = None) -> NoReturn:
        raise NotImplementedError("exponentials cannot be enumerated; draw instead")

    def exponentials(
        self, stream: Stream, root: int, index: int, vocab_size: int, ids: Tensor | None = None
    ) -> NoReturn:
        raise NotImplementedError("exponentials cannot be enumerated; draw instead")

    def below(self, key: NoiseKey, threshold: float) -> bool:
        """Whether the uniform of ``key`` lies below ``threshold``: a branch over what is not known of it yet."""
        low, high = self._ranges.get(key, (0.0, 1.0))
        cut = min(max(threshold, low), high)
        chance = (cut - low) / (high - low)
        is_below = self._branches.choose((1 - chance, chance)) == 1
        self._ranges[key] = (low, cut) if is_below else (cut, high)
        return is_below

    def check_round(self, root_position: int, said: int) -> None:
        """Refuse keys that a round at ``root_position`` which said ``said`` tokens may share with a later round.

        Raises:
            NoiseReusedError: naming the key.
        """
        for stream, position, index in self._used:
            coupled = stream is Stream.TARGET
            if not (root_position < position <= root_position + said if coupled else position == root_position):
                raise NoiseReusedError(
                    f"the round at {root_position} used {stream.name} noise of position {position}, index {index}"
                )

    def _claim(self, stream: Stream, root: int, index: int) -> None:
        key = (stream, root, index)
        if key in self._used:
            raise NoiseReusedError(f"{stream.name} noise of position {root}, index {index} was drawn from twice")
        self._used.add(key)


class Comparable(Protocol):
    """Noise whose uniforms are known by comparison alone."""

    def below(self, key: NoiseKey, threshold: float) -> bool:
        """Whether the uniform of ``key`` lies below ``threshold``."""
        ...


class ComparedUniform(float):
    """A uniform number times a factor; ``u * q < p`` asks its noise whether u lies below p / q."""

    _noise: Comparable
    _key: NoiseKey
    _factor: float

    def __new__(cls, noise: Comparable, key: NoiseKey, factor: float = 1.0) -> ComparedUniform:
        uniform = super().__new__(cls, math.nan)
        uniform._noise, uniform._key, uniform._factor = noise, key, factor
        return uniform

    def __mul__(self, factor: float) -> ComparedUniform:
        return ComparedUniform(self._noise, self._key, self._factor * factor)

    def __lt__(self, bound: float) -> bool:
        if self._factor == 0:
            return bound > 0
        return self._noise.below(self._key, bound / self._factor)

    def __le__(self, bound: float) -> bool:
        return self < bound  # equality has probability 0

    def __eq__(self, other: object) -> bool:
        raise TypeError("a uniform number is compared with < alone")

    __hash__ = None  # type: ignore[assignment]


class ModelLaws:
    """``NodeLaws`` of a toy target at the nodes of one tree."""

    def __init__(
        self,
        target: Model,
        tree: DraftTree,
        noise: SequenceNoise,
        root_position: int,
        tokens: Tokens,
        greedy: bool = False,
    ) -> None:
        self._target = target
        self._tree = tree
        self._noise = noise
        self._root_position = root_position
        self._tokens = tokens
        self.greedy = greedy

    def probs(self, node: int) -> Tensor:
        return self._target(self._tokens + self._path(node))

    def sample(self, node: int) -> int:
        law = self.probs(node).numpy()
        if self.greedy:
            return int(law.argmax())
        return self._noise.draw_at(self._root_position + len(self._path(node)) + 1, len(law), law)

    def peak_ratio(self, node: int, token: int) -> float:
        law = self.probs(node)
        return float(law[token] / law.max())

    def _path(self, node: int) -> Tokens:
        if node == ROOT:
            return ()
        return tuple(int(self._tree.tokens[step]) for step in self._tree.path_to(node))


@dataclass(frozen=True)
class OutputLaw:
    """What rounds say, and how far they get."""

    probs: dict[Tokens, float]
    """Sequence -> probability."""
    accepted: float
    """Expected number of accepted nodes in the first round."""


def run_round(
    target: Model,
    propose: Propose,
    noise: SequenceNoise,
    tokens: Tokens,
    *,
    rule: VerifyRule = VerifyRule.AUTO,
    lenience: float | None = None,
    greedy: bool = False,
    verify: Verify = verify,
) -> Tokens:
    """The tokens of one round after ``tokens``; the root stands at position ``len(tokens)``."""
    root_position = len(tokens)
    tree = propose(noise, root_position, tokens)
    laws = ModelLaws(target, tree, noise, root_position, tokens, greedy)
    verdict = verify(tree, laws, noise, root_position, rule, lenience)
    return (*(int(tree.tokens[node]) for node in verdict.path), verdict.token)


def output_law(target: Model, propose: Propose, length: int, *, rounds: int = 1, **options: Any) -> OutputLaw:
    """The law of the first ``length`` tokens of ``rounds`` rounds, shorter outputs going on as the target does.

    ``options`` are those of ``run_round``. Rounds are enumerated one by one: they depend on each other through the
    tokens alone, because no round may use a noise key that another one could use, which is checked.

    Raises:
        NoiseReusedError: a rule decided two things by one noise key, or a round used a key of another round.
    """

    def round_after(tokens: Tokens) -> dict[Tokens, float]:
        def run(branches: Branches) -> Tokens:
            noise = EnumeratedNoise(branches)
            said = run_round(target, propose, noise, tokens, **options)
            noise.check_round(len(tokens), len(said))
            return said

        law: dict[Tokens, float] = defaultdict(float)
        for probability, said in enumerate_runs(run):
            law[said] += probability
        return law

    first = round_after(())
    accepted = sum(probability * (len(said) - 1) for said, probability in first.items())
    reached: dict[Tokens, float] = {(): 1.0}
    for number in range(rounds):
        before, reached = reached, defaultdict(float)
        for tokens, probability in before.items():
            following = first if number == 0 else round_after(tokens) if len(tokens) < length else {(): 1.0}
            for said, chance in following.items():
                reached[(tokens + said)[:length]] += probability * chance
    law: dict[Tokens, float] = defaultdict(float)
    for tokens, probability in reached.items():
        for rest, chance in product_law(target, length - len(tokens), tokens).items():
            law[tokens + rest] += probability * chance
    return OutputLaw(dict(law), accepted)


def product_law(target: Model, length: int, tokens: Tokens = ()) -> dict[Tokens, float]:
    """The target's own law of the next ``length`` tokens after ``tokens``."""
    if length == 0:
        return {(): 1.0}
    return {
        (token, *rest): chance * probability
        for token, chance in enumerate(target(tokens).tolist())
        if chance > 0
        for rest, probability in product_law(target, length - 1, (*tokens, token)).items()
    }


def largest_error(law: dict[Tokens, float], expected: dict[Tokens, float]) -> float:
    """The largest difference of a probability."""
    return max(abs(law.get(tokens, 0.0) - expected.get(tokens, 0.0)) for tokens in law.keys() | expected.keys())
