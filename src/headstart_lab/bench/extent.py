"""How much of a benchmark fits into a budget of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart_lab.bench.prompts import BenchPrompt, choose, groups_of

MOST_TOKENS = 128
MOST_REPEATS = 9
"""With a budget: more say little more."""
_WANTED_REPEATS = 3
"""Fewer tell nothing of the spread."""
_LENGTHS = (MOST_TOKENS, 64)
_SHORT_LENGTHS = (64, 32, 16)
"""Of answers, where there is time for one repeat alone."""


@dataclass(frozen=True)
class Pace:
    """What plain decoding takes here, in seconds."""

    opening: float
    """To make all drafters, once a repeat."""
    per_character: float
    """To read a prompt."""
    per_token: float


@dataclass(frozen=True)
class Extent:
    """What is going to be measured."""

    prompts: list[BenchPrompt]
    max_tokens: int
    repeats: int

    @property
    def turns(self) -> int:
        """Of all repeats."""
        return self.repeats * sum(len(prompt.turns) for prompt in self.prompts)


def fit(
    prompts: Sequence[BenchPrompt],
    pace: Pace,
    contenders: int,
    seconds: float,
    *,
    max_tokens: int | None = None,
    repeats: int | None = None,
) -> Extent:
    """As much as fits into ``seconds``: rather long answers than many prompts, rather three repeats of 64 tokens than
    longer answers, and rather one repeat than answers that are shorter still.

    Drafters are taken to be as slow as plain decoding; what they save is for more repeats. Where nothing fits it is the
    least that says anything.

    Args:
        contenders: plain decoding counted in.
        max_tokens, repeats: not to be chosen; None: choose.
    """
    largest = max(sum(prompt.group == group for prompt in prompts) for group in groups_of(prompts))
    wanted = [(repeats or _WANTED_REPEATS, length) for length in _LENGTHS]
    scarce = [(repeats or 1, length) for length in _SHORT_LENGTHS]
    for count, length in [*wanted, *scarce]:
        for per_group in range(largest if (count, length) in wanted or max_tokens else 1, 0, -1):
            extent = Extent(choose(prompts, per_group), max_tokens or length, count)
            if cost(extent, pace, contenders) <= seconds:
                return extent
    return Extent(choose(prompts, 1), max_tokens or _SHORT_LENGTHS[-1], repeats or 1)


def cost(extent: Extent, pace: Pace, contenders: int) -> float:
    """Seconds that it takes."""
    read, said = 0, 0
    for prompt in extent.prompts:
        for turn in range(len(prompt.turns)):
            read += sum(map(len, prompt.turns[: turn + 1]))
            said += extent.max_tokens
    decoding = contenders * (read * pace.per_character + said * pace.per_token)
    return extent.repeats * (pace.opening + decoding)
