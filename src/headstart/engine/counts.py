"""What an engine has decoded since it began, in the form of vLLM's ``get_metrics``."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field

from headstart.engine.outputs import SequenceStats


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
    """What a sequence adds to each counter, by vLLM's names."""
    return {
        "vllm:prompt_tokens": stats.prompt_tokens,
        "vllm:generation_tokens": stats.tokens,
        "vllm:num_preemptions": stats.preemptions,
        "vllm:prefix_cache_queries": stats.prompt_tokens,
        "vllm:prefix_cache_hits": min(stats.cached_tokens, stats.prompt_tokens),
        "vllm:spec_decode_num_drafts": sum(stats.drafted_per_position[:1]),
        "vllm:spec_decode_num_draft_tokens": stats.drafted,
        "vllm:spec_decode_num_accepted_tokens": stats.accepted,
    }
