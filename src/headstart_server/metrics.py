"""The server's counts for Prometheus, under vLLM's names where vLLM has the same metric."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headstart.engine.counts import SUMS, sums
from headstart.engine.sequence import Sequence

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of a histogram's buckets."""


class Metrics:
    """Counts since the start, in a registry of their own: a process may have several engines. The engine's thread
    writes them, others read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._sums = {each.name: self._counter(each.name, each.help) for each in SUMS}
        self._ended = self._counter("vllm:request_success", "Requests that ended, by why.", "finished_reason")
        self._accepted_at = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Guesses that were accepted, by place in a draft.",
            "position",
        )
        by_place = ("drafter", "position")
        self._drafted_by = self._counter(
            "headstart:spec_decode_drafted_per_pos", "Guesses of a drafter that were verified.", *by_place
        )
        self._accepted_by = self._counter(
            "headstart:spec_decode_accepted_per_pos", "Guesses of a drafter that were accepted.", *by_place
        )
        self._adapted_tokens = self._counter("headstart:adapter_tokens", "Tokens said with an adapter.", "adapter")
        self._adapted_rounds = self._counter("headstart:adapter_rounds", "Rounds that said them.", "adapter")
        self._first_token = self._histogram("vllm:time_to_first_token_seconds", "From a request to its first token.")
        self._next_token = self._histogram("vllm:inter_token_latency_seconds", "Between rounds that yielded tokens.")
        self._request = self._histogram("vllm:e2e_request_latency_seconds", "From a request to its end.")

    def waited(self, first: bool, seconds: float) -> None:
        """Count a wait for a request's first token, or for its next ones."""
        with self._lock:
            (self._first_token if first else self._next_token).observe(seconds)

    def finished(self, sequence: Sequence, drafter: str | None) -> None:
        """Count a sequence that has left the engine, all at once, so that no reader sees half of it."""
        stats = sequence.stats
        with self._lock:
            self._ended.labels(str(sequence.finish_reason)).inc()
            for name, amount in sums(stats).items():
                self._sums[name].inc(amount)
            if sequence.adapter is not None:
                self._adapted_tokens.labels(sequence.adapter.name).inc(stats.tokens)
                self._adapted_rounds.labels(sequence.adapter.name).inc(stats.rounds)
            self._request.observe(stats.seconds)
            places = zip(stats.drafted_per_position, stats.accepted_per_position, strict=True)
            for place, (drafted, accepted) in enumerate(places if drafter is not None else ()):
                self._accepted_at.labels(place).inc(accepted)
                self._drafted_by.labels(drafter, place).inc(drafted)
                self._accepted_by.labels(drafter, place).inc(accepted)

    def snapshot(self) -> dict[str, float]:
        """Counters as plain values: name, or name{label="value"}, -> number."""
        counted = [each for each in self._collected() if each.type == "counter"]
        lines = _text(counted).decode().splitlines()
        series = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in series}

    def labelled(self, gauges: Mapping[str, float], model: str) -> list[Metric]:
        """All series, gauges included; each is labelled with the model's name."""
        now = [GaugeMetricFamily(name, "As it is now.", value) for name, value in gauges.items()]
        families = [*now, *self._collected()]
        for each in families:
            each.samples = [seen._replace(labels={**seen.labels, "model_name": model}) for seen in each.samples]
        return families

    def _counter(self, name: str, said: str, *labels: str) -> Counter:
        return Counter(name, said, labels, registry=self._registry)

    def _histogram(self, name: str, said: str) -> Histogram:
        return Histogram(name, said, buckets=_SECONDS, registry=self._registry)

    def _collected(self) -> list[Metric]:
        """All series of one moment, but when each began."""
        with self._lock:
            families = list(self._registry.collect())
        for each in families:
            each.samples = [seen for seen in each.samples if not seen.name.endswith("_created")]
        return families


def rendered(models: Iterable[tuple[Metrics, Mapping[str, float], str]]) -> bytes:
    """Everything in Prometheus' text format, version 0.0.4; ``models``: metrics, gauges and name of each."""
    together: dict[str, Metric] = {}
    for metrics, gauges, name in models:
        for family in metrics.labelled(gauges, name):
            if family.name in together:
                together[family.name].samples += family.samples
            else:
                together[family.name] = family
    return _text(together.values())


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _text(families: Iterable[Metric]) -> bytes:
    return generate_latest(_Collected(families))
