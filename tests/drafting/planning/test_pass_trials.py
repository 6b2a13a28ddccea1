from __future__ import annotations

import pytest
from toys import ToyBackend, hashed_logits

from headstart.drafting.context import DraftContext
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning.pass_trials import try_passes
from headstart.passes.runner import ModelRunner, Span

VOCAB = 12


def toy_runner(cache_tokens: int) -> ModelRunner:
    return ModelRunner(ToyBackend(VOCAB, hashed_logits(VOCAB, order=1)), cache_tokens, block_size=4)


def test_the_cache_is_left_as_it_was() -> None:
    runner = toy_runner(256)
    runner.cache.add(0)
    with runner.cache.reserve({0: 5}):
        runner.cache.commit(0, range(5))
    free = runner.cache.allocator.num_free
    tried = try_passes(runner)
    assert [each.rows for each in tried] == sorted({each.rows for each in tried})
    assert all(each.seconds > 0 for each in tried)
    assert runner.cache.allocator.num_free == free
    assert runner.cache.length(0) == 5
    runner.cache.check()


def test_passes_that_do_not_fit_are_left_out() -> None:
    tried = try_passes(toy_runner(8))
    assert tried
    assert max(each.rows for each in tried) <= 8


def test_a_full_cache_is_no_fault() -> None:
    runner = toy_runner(4)
    runner.cache.add(0)
    with runner.cache.reserve({0: 4}):
        runner.cache.commit(0, range(4))
    assert try_passes(runner) == []


def test_a_pass_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = toy_runner(256)
    free = runner.cache.allocator.num_free

    def fail(*_: object) -> None:
        raise RuntimeError("no pass today")

    monkeypatch.setattr(runner, "forward", fail)
    with pytest.raises(RuntimeError, match="no pass today"):
        try_passes(runner)
    assert runner.cache.allocator.num_free == free
    assert -1 not in runner.cache


def test_passes_that_are_recorded_are_timed_once_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two of a number of rows are not counted: one runs anew, one records."""
    runner, now = toy_runner(2048), 0.0
    runner.unrecorded = 2
    run: dict[tuple[int, int], int] = {}
    forward = runner.forward

    def slow_at_first(spans: list[Span]) -> object:
        nonlocal now
        kind = (len(spans[0]), runner.cache.length(-1))
        run[kind] = run.get(kind, 0) + 1
        now += 0.02 if run[kind] <= 2 else 0.001 * (1 + kind[0] * kind[1] / 1024)
        return forward(spans)

    monkeypatch.setattr(runner, "forward", slow_at_first)
    monkeypatch.setattr("headstart.drafting.planning.pass_trials.time.perf_counter", lambda: now)
    assert [each.seconds for each in try_passes(runner)] == pytest.approx([0.001] * 10)


def test_slow_passes_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, now = toy_runner(256), 0.0
    sizes: list[int] = []

    def forward(spans: list[object]) -> None:
        nonlocal now
        sizes.append(len(spans[0]))  # type: ignore[arg-type]
        now += 0.4

    monkeypatch.setattr(runner, "forward", forward)
    monkeypatch.setattr("headstart.drafting.planning.pass_trials.time.perf_counter", lambda: now)
    tried = try_passes(runner)
    assert [each.rows for each in tried] == sizes[1:]
    assert [each.seconds for each in tried] == pytest.approx([0.4] * len(tried))
    assert len(tried) == 2


def test_the_planner_knows_costs_before_the_first_request() -> None:
    runner = toy_runner(256)
    drafter = AutoDrafter(DraftContext(VOCAB, runner), AutoDrafter.Options("suffix"))
    assert drafter.costs.passes.known
    assert not AutoDrafter(DraftContext(VOCAB), AutoDrafter.Options("suffix")).costs.passes.known
