"""Counts that are read while they are written."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from prometheus_client.parser import text_string_to_metric_families

from headstart.engine.outputs import FinishReason, SequenceStats
from headstart.engine.sequence import Sequence
from headstart_server.metrics import Metrics, rendered

STATS = SequenceStats(
    prompt_tokens=3, tokens=7, drafted=5, accepted=4, drafted_per_position=[3, 2], accepted_per_position=[2, 2]
)
SEQUENCE = cast(Sequence, SimpleNamespace(adapter=None, stats=STATS, finish_reason=FinishReason.STOP))
BY_PLACE = 'headstart:spec_decode_accepted_per_pos_total{drafter="ngram",position="1"}'


def test_nobody_sees_half_a_sequence() -> None:
    metrics = Metrics()
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer = threading.Thread(target=lambda: [metrics.finished(SEQUENCE, "ngram") for _ in range(3000)])
    seen: list[dict[str, Any]] = []
    try:
        writer.start()
        while writer.is_alive():
            seen.append(metrics.snapshot())
    finally:
        writer.join()
        sys.setswitchinterval(switch)
    for counts in [*seen, metrics.snapshot()]:
        ended = counts.get('vllm:request_success_total{finished_reason="stop"}', 0)
        assert counts["vllm:prompt_tokens_total"] == 3 * ended
        assert counts["vllm:generation_tokens_total"] == 7 * ended
        assert counts["vllm:spec_decode_num_accepted_tokens_total"] == 4 * ended
        assert counts.get(BY_PLACE, 0) == 2 * ended
    assert metrics.snapshot()["vllm:generation_tokens_total"] == 21_000


def test_engines_of_one_process_count_apart() -> None:
    busy, idle = Metrics(), Metrics()
    busy.finished(SEQUENCE, None)
    assert busy.snapshot()["vllm:generation_tokens_total"] == 7
    assert not any(idle.snapshot().values())


def test_prometheus_reads_every_series_with_its_type_and_the_models_name() -> None:
    name = 'a "model"\nof\\mine'
    metrics = Metrics()
    metrics.finished(SEQUENCE, "ngram")
    for first, seconds in ((True, 0.3), (True, 700.0), (False, 0.002)):
        metrics.waited(first, seconds)
    text = rendered([(metrics, {"vllm:num_requests_running": 2, "headstart:drafter_faults_ngram": 0}, name)]).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert {each.type for each in families.values()} == {"gauge", "counter", "histogram"}
    assert all(each.documentation for each in families.values())
    series = [seen for each in families.values() for seen in each.samples]
    assert {seen.labels["model_name"] for seen in series} == {name}
    assert not [seen.name for seen in series if seen.name.endswith("_created")]
    values = {(seen.name, seen.labels.get("le", "")): seen.value for seen in series}
    assert values["vllm:num_requests_running", ""] == 2
    assert values["vllm:time_to_first_token_seconds_sum", ""] == pytest.approx(700.3)
    assert [values["vllm:time_to_first_token_seconds_bucket", le] for le in ("0.25", "0.5", "60.0", "+Inf")] == [
        0, 1, 1, 2
    ]  # fmt: skip
