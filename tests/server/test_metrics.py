"""Counts that are read while they are written."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from headstart.engine.outputs import FinishReason, SequenceStats
from headstart.engine.sequence import Sequence
from headstart.server.metrics import Metrics

STATS = SequenceStats(
    prompt_tokens=3, tokens=7, drafted=5, accepted=4, drafted_per_position=[3, 2], accepted_per_position=[2, 2]
)


def test_nobody_sees_half_a_sequence() -> None:
    metrics = Metrics()
    sequence = cast(Sequence, SimpleNamespace(stats=STATS, finish_reason=FinishReason.STOP))
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    writer = threading.Thread(target=lambda: [metrics.finished(sequence, "ngram") for _ in range(3000)])
    seen: list[dict[str, Any]] = []
    try:
        writer.start()
        while writer.is_alive():
            seen.append(metrics.snapshot())
    finally:
        writer.join()
        sys.setswitchinterval(switch)
    for counts in filter(None, [*seen, metrics.snapshot()]):
        ended = counts['vllm:request_success_total{finished_reason="stop"}']
        assert counts["vllm:prompt_tokens_total"] == 3 * ended
        assert counts["vllm:generation_tokens_total"] == 7 * ended
        assert counts["vllm:spec_decode_num_accepted_tokens_total"] == 4 * ended
        assert counts['headstart:spec_decode_accepted_per_pos_total{drafter="ngram",position="1"}'] == 2 * ended
    assert metrics.snapshot()["vllm:generation_tokens_total"] == 21_000
