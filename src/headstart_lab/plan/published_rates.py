"""How often guesses of drafters that nobody here has trained are right, by what others have published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LONGEST = 8
"""Guesses that published rates are continued to."""


@dataclass(frozen=True)
class PublishedRates:
    """Each guess is taken to be right as often as the one before it: papers mostly give one figure."""

    chance: float
    """That a guess is right where those before it are."""
    source: str

    @property
    def rates(self) -> tuple[float, ...]:
        """Chance that the first, the first two, ... guesses are right."""
        return tuple(self.chance**depth for depth in range(1, LONGEST + 1))


def chance_of(tokens: float, guesses: int) -> float:
    """The chance of each of so many guesses with which a round yields ``tokens`` on average: 1 + a + a^2 + ..."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**depth for depth in range(guesses + 1)) < tokens else (low, middle)
    return low


PUBLISHED: Mapping[str, PublishedRates] = {
    "eagle3": PublishedRates(
        chance_of(2.66, 7), "2.66 tokens a round of 7 guesses: Qwen3-8B, MT-Bench, sampled at 1.0 (arXiv:2607.05147)"
    ),
    "dflash": PublishedRates(
        chance_of(3.11, 7), "3.11 tokens a round of 7 guesses: Qwen3-8B, MT-Bench, sampled at 1.0 (arXiv:2607.05147)"
    ),
    "p-eagle": PublishedRates(
        chance_of(2.68, 5), "2.68 tokens a round of 5 guesses: gpt-oss-120B, MT-Bench (P-EAGLE, arXiv:2602.01469)"
    ),
    "mtp": PublishedRates(
        0.85, "the second token is right 85 to 90 % of the time: DeepSeek-V3 (arXiv:2412.19437, section 5.4.3)"
    ),
    "assistant": PublishedRates(
        0.66, "66 % of the guesses hold, two at a time mostly: Gemma 4 12B in 4 bits, greedy (Rapid-MLX, issue 1013)"
    ),
    "draft-model": PublishedRates(
        0.65, "a guess is right 65 % of the time: T5-small for T5-XXL, summaries, greedy (arXiv:2211.17192, table 3)"
    ),
}
"""By drafter; of the figures that are published the one of open conversation, where there is one, which is among the
lowest."""
