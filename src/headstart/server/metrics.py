"""The server's counts in Prometheus' text format, under vLLM's names where vLLM has the same metric."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

from headstart.engine.outputs import SequenceStats
from headstart.engine.sequence import Sequence

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Observations in seconds, counted in buckets with upper bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.total += seconds

    def lines(self, name: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*map(str, _SECONDS), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}"}} {seen}'
        yield f"{name}_sum {self.total}"
        yield f"{name}_count {seen}"


class Metrics:
    """Counts since the start. The engine's thread writes them, others read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], float] = {}
        self._histograms = {
            name: Histogram()
            for name in (
                "vllm:time_to_first_token_seconds",
                "vllm:inter_token_latency_seconds",
                "vllm:e2e_request_latency_seconds",
            )
        }

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        with self._lock:
            self._count(name, amount, **labels)

    def observe(self, name: str, seconds: float) -> None:
        """Add to the histogram ``vllm:<name>_seconds``."""
        with self._lock:
            self._observe(name, seconds)

    def finished(self, sequence: Sequence, drafter: str | None) -> None:
        """Count a sequence that has left the engine, all at once, so that no reader sees half of it."""
        stats = sequence.stats
        with self._lock:
            self._count("vllm:request_success_total", finished_reason=str(sequence.finish_reason))
            self._count("vllm:prompt_tokens_total", stats.prompt_tokens)
            self._count("vllm:generation_tokens_total", stats.tokens)
            self._count("vllm:num_preemptions_total", stats.preemptions)
            self._count("vllm:prefix_cache_queries_total", stats.prompt_tokens)
            self._count("vllm:prefix_cache_hits_total", min(stats.cached_tokens, stats.prompt_tokens))
            self._observe("e2e_request_latency", stats.seconds)
            if drafter is not None:
                self._drafted(stats, drafter)

    def snapshot(self) -> dict[str, Any]:
        """Counters as plain values: name, or name{label="value"}, -> number."""
        with self._lock:
            return {name + _labels(labels): value for (name, labels), value in sorted(self._counters.items())}

    def _count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = (name, tuple(sorted(labels.items())))
        self._counters[key] = self._counters.get(key, 0) + amount

    def _observe(self, name: str, seconds: float) -> None:
        self._histograms[f"vllm:{name}_seconds"].observe(seconds)

    def _drafted(self, stats: SequenceStats, drafter: str) -> None:
        self._count("vllm:spec_decode_num_drafts_total", sum(stats.drafted_per_position[:1]))
        self._count("vllm:spec_decode_num_draft_tokens_total", stats.drafted)
        self._count("vllm:spec_decode_num_accepted_tokens_total", stats.accepted)
        for position, (drafted, accepted) in enumerate(
            zip(stats.drafted_per_position, stats.accepted_per_position, strict=True)
        ):
            self._count("vllm:spec_decode_num_accepted_tokens_per_pos_total", accepted, position=str(position))
            where = {"drafter": drafter, "position": str(position)}
            self._count("headstart:spec_decode_drafted_per_pos_total", drafted, **where)
            self._count("headstart:spec_decode_accepted_per_pos_total", accepted, **where)

    def render(self, gauges: Mapping[str, float], model: str) -> str:
        """Everything, each series labelled with the model's name."""
        lines = []
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{_labels((('model_name', model),))} {value}"]
        with self._lock:
            before = ""
            for (name, labels), value in sorted(self._counters.items()):
                if name != before:
                    lines.append(f"# TYPE {name} counter")
                before = name
                lines.append(f"{name}{_labels((*labels, ('model_name', model)))} {value}")
            for name, histogram in self._histograms.items():
                lines += [f"# TYPE {name} histogram", *histogram.lines(name)]
        return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
