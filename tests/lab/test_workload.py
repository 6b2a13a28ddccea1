"""Work that is told while it goes on."""

from __future__ import annotations

from headstart_lab.workload import Workload


def test_parts_amount_to_what_was_expected_of_them() -> None:
    told: list[tuple[int, int]] = []
    work = Workload(lambda units, tokens: told.append((units, tokens)))
    with work.part(10):
        work.done(4)
        assert told == [(4, 4)]
        work.done(9)
    with work.part(5):
        work.done(0, units=2)
    with work.part(3):
        pass
    assert sum(units for units, _ in told) == 18
    assert sum(tokens for _, tokens in told) == 13
    assert all(units >= 0 for units, _ in told)
