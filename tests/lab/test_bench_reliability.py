"""What drafters say of their guesses beside what became of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.engine.outputs import SequenceStats
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart_charts.page import Table, to_html
from headstart_charts.plots import Figure
from headstart_lab.bench.drafters_report import exhibits, to_json
from headstart_lab.bench.reliability import BINS, Reliability, judged
from headstart_lab.bench.run import BenchRuns, Run
from headstart_lab.bench.summary import summarise

SAID = Reliability.of([(0.95, True), (0.97, True), (0.91, False), (0.3, False), (0.3, True), (1.0, True), (0.0, False)])


def tree(chances: list[float] | None) -> DraftTree:
    #      root -> 1 -> 3 -> 5
    #                -> 4
    #           -> 2 -> 6
    tokens, parents = np.array([1, 2, 3, 4, 6, 5], np.int32), np.array([ROOT, ROOT, 0, 0, 1, 2], np.int32)
    return DraftTree(tokens, parents, chances=None if chances is None else np.array(chances))


def run(contender: str, reliability: Reliability) -> Run:
    stats = SequenceStats(tokens=10, rounds=5, seconds=2.0, prefill_seconds=1.0, target_seconds=0.5)
    return Run(contender, "1", "qa", 0, 0, (1,) * 10, (), stats, True, reliability=reliability)


def test_guesses_are_judged_where_their_parent_was_accepted() -> None:
    draft = tree([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert judged(draft, [1, 4, 9]) == [(0.1, True), (0.2, False), (0.3, False), (0.4, True)]
    assert judged(draft, [9]) == [(0.1, False), (0.2, False)]
    assert judged(draft, [1]) == [(0.1, True), (0.2, False)]
    assert judged(tree(None), [1, 4, 9]) == []
    assert judged(draft.restricted_to(np.array([True, False, True, True, False, True])), [1, 3, 5]) == [
        *((0.1, True), (0.3, True), (0.4, False)),
        (0.6, True),
    ]


def test_bins_and_the_expected_calibration_error() -> None:
    assert SAID.counts == (1, 0, 0, 2, 0, 0, 0, 0, 0, 4)
    assert SAID.means[3] == pytest.approx(0.3)
    assert SAID.means[9] == pytest.approx((0.95 + 0.97 + 0.91 + 1) / 4)
    assert (SAID.frequencies[0], SAID.frequencies[1], SAID.frequencies[3], SAID.frequencies[9]) == (0, None, 0.5, 0.75)
    apart = (2 * abs(0.3 - 0.5) + 4 * abs((0.95 + 0.97 + 0.91 + 1) / 4 - 0.75)) / 7
    assert SAID.calibration_error == pytest.approx(apart)
    assert Reliability().calibration_error == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=40), st.integers(0, 40))
def test_parts_add_up(said: list[tuple[float, bool]], cut: int) -> None:
    whole, parts = Reliability.of(said), Reliability.of(said[:cut]) + Reliability.of(said[cut:])
    assert (whole.counts, whole.held) == (parts.counts, parts.held)
    assert whole.predicted == pytest.approx(parts.predicted)
    assert whole.guesses == len(said)


def test_the_report_shows_who_can_be_trusted() -> None:
    runs = BenchRuns([run("none", Reliability()), run("ngram", Reliability()), run("auto", SAID)])
    summaries = summarise(runs)
    shown = exhibits(runs, summaries)
    (table,) = [each for each in shown if isinstance(each, Table) and each.title.startswith("Reliability")]
    (figure,) = [each for each in shown if isinstance(each, Figure) and each.title.startswith("Reliability")]
    assert [row[0] for row in table.rows] == ["auto"]
    assert len(table.columns) == len(table.rows[0]) == 3 + BINS
    assert table.rows[0][1:3] == (7, pytest.approx(SAID.calibration_error))
    assert table.rows[0][3 + 9] == "0.96 → 0.75 (4)"
    assert [curve.label for curve in figure.curves] == ["as predicted", "auto"]
    assert list(figure.curves[1].y) == pytest.approx([0, 0.5, 0.75])
    assert "Reliability of predicted acceptance" in to_html("bench", shown)
    written = json.loads(json.dumps(to_json(runs, summaries, {})))["contenders"]
    assert [each["reliability"] is None for each in written] == [True, True, False]
    assert written[2]["reliability"]["counts"] == list(SAID.counts)
    assert written[2]["reliability"]["expected_calibration_error"] == pytest.approx(SAID.calibration_error)
    assert written[2]["reliability"]["measured"][1] is None
