"""What an engine has decoded since it began, in the form of vLLM's ``get_metrics``."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headstart.engine.outputs import SequenceStats


class Sum(NamedTuple):
    """A counter without labels: what every sequence that leaves adds up to."""

    name: str
    help: str
    of: Callable[[SequenceStats], int]
    """What a sequence adds."""


SUMS = (
    Sum("vllm:prompt_tokens", "Tokens of prompts.", lambda stats: stats.prompt_tokens),
    Sum("vllm:generation_tokens", "Tokens of answers.", lambda stats: stats.tokens),
    Sum("vllm:num_preemptions", "Times that a request made room for another.", lambda stats: stats.preemptions),
    Sum(
        "vllm:prefix_cache_queries",
        "Tokens of prompts that were looked for in the cache.",
        lambda stats: stats.prompt_tokens,
    ),
    Sum(
        "vllm:prefix_cache_hits",
        "Tokens of prompts that were found there.",
        lambda stats: min(stats.cached_tokens, stats.prompt_tokens),
    ),
    Sum("vllm:spec_decode_num_drafts", "Drafts that were verified.", lambda stats: sum(stats.drafted_per_position[:1])),
    Sum("vllm:spec_decode_num_draft_tokens", "Guesses that were verified.", lambda stats: stats.drafted),
    Sum("vllm:spec_decode_num_accepted_tokens", "Guesses that were accepted.", lambda stats: stats.accepted),
)
"""By vLLM's names where vLLM counts the same; the library's and the server's metrics are made of this table."""


@dataclass(frozen=True)
class Counter:
    """A number that only grows."""

    name: str
    value: int
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Vector:
    """Numbers that only grow, one for each position of a draft."""

    name: str
    values: list[int]
    labels: dict[str, str] = field(default_factory=dict)


class Counts:
    """Sums over the sequences that have left an engine."""

    def __init__(self) -> None:
        self._sums: Tally[str] = Tally()
        self._accepted_per_position: list[int] = []

    def add(self, stats: SequenceStats) -> None:
        """Count a sequence."""
        self._sums.update(sums(stats))
        deeper = len(stats.accepted_per_position) - len(self._accepted_per_position)
        self._accepted_per_position += [0] * max(deeper, 0)
        for position, accepted in enumerate(stats.accepted_per_position):
            self._accepted_per_position[position] += accepted

    def metrics(self) -> list[Counter | Vector]:
        """By vLLM's names."""
        counters: list[Counter | Vector] = [Counter(name, value) for name, value in self._sums.items()]
        return [*counters, Vector("vllm:spec_decode_num_accepted_tokens_per_pos", list(self._accepted_per_position))]


def sums(stats: SequenceStats) -> dict[str, int]:
    """What a sequence adds to each counter of ``SUMS``."""
    return {each.name: each.of(stats) for each in SUMS}
