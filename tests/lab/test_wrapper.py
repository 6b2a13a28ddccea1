"""Whoever watches a drafter sees rounds that are run at once as it sees others."""

from __future__ import annotations

import numpy as np
from drafting_toys import ToySequence

from headstart.passes.rounds import RoundRecord, SpanRecord
from headstart_lab.wrapper import watched_rounds


def span(tokens: list[int], parents: list[int], path: list[int], token: int) -> SpanRecord:
    return SpanRecord(
        asked=True,
        tokens=tokens,
        parents=parents,
        grades=[3] * len(tokens),
        path=path,
        token=token,
        gains=[0.0] * 2,
        verified=[0] * 2,
        judged=[0] * 2,
    )


def record(*spans: SpanRecord) -> RoundRecord:
    return RoundRecord(
        spans=list(spans),
        draft_seconds=[0.25, 0.5],
        pass_seconds=2.0,
        walk_seconds=0.1,
        read_seconds=0.0,
        other_seconds=0.1,
        row_seconds=0.0,
    )


def test_rounds_follow_each_other_in_every_sequence() -> None:
    """Two sequences, which get ahead at their own pace; the second ends in the middle of its last round's path."""
    first, second = ToySequence(0, [1, 2, 20, 21, 5, 6]), ToySequence(1, [4, 10, 30])
    rounds = [
        record(span([20, 9, 21], [-1, -1, 0], [0, 2], 5), span([], [], [], 10)),
        record(span([8], [-1], [], 6), span([30, 31], [-1, 0], [0, 1], 32)),
    ]
    watched = watched_rounds([first, second], [1, 0], rounds, graded=True)
    assert [each.draft_seconds for each in watched] == [0.75, 0.75]
    assert all(each.at_once for each in watched)
    seen = [
        (
            outcome.sequence.id,
            outcome.first_position,
            outcome.row_tokens.tolist(),
            outcome.draft.parents.tolist(),
            outcome.accepted,
            outcome.committed,
            outcome.pass_rows,
        )
        for each in watched
        for outcome in each.outcomes
    ]
    assert seen == [
        (0, 1, [2, 20, 9, 21], [-1, -1, 0], (0, 2), (20, 21, 5), 5),
        (1, 0, [4], [], (), (10,), 5),
        (0, 4, [5, 8], [-1], (), (6,), 5),
        (1, 1, [10, 30, 31], [-1, 0], (), (30,), 5),
    ]
    assert all(outcome.row_tokens.dtype == np.int32 for each in watched for outcome in each.outcomes)
    assert {outcome.pass_seconds for each in watched for outcome in each.outcomes} == {2.0}


def test_grades_without_meaning_are_left_out() -> None:
    sequence, rounds = ToySequence(0, [1, 2, 3]), [record(span([2], [-1], [0], 3))]
    for graded in (True, False):
        (only,) = watched_rounds([sequence], [0], rounds, graded)
        grades = only.outcomes[0].draft.grades
        assert (grades is not None) == graded
        assert grades is None or grades.tolist() == [3]
