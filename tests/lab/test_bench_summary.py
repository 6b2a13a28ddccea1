"""What runs amount to, on runs whose figures can be worked out by hand."""

from __future__ import annotations

import json
import math

import pytest

from headstart.engine.outputs import SequenceStats
from headstart_charts.page import Table, to_html
from headstart_lab.bench.drafters_report import exhibits, to_json
from headstart_lab.bench.run import BenchRuns, Run
from headstart_lab.bench.summary import summarise
from headstart_lab.differences import Difference
from headstart_lab.theory import formulas as theory


def run(contender="none", prompt="1", group="qa", repeat=0, *, tokens=10, rounds=10, seconds=1.0, **more) -> Run:
    """Prefill takes 1 s, half of the rest is the target's pass, a quarter drafting, a tenth its prompts."""
    stats = SequenceStats(
        tokens=tokens,
        rounds=rounds,
        seconds=1.0 + seconds,
        prefill_seconds=1.0,
        target_seconds=seconds / 2,
        draft_seconds=seconds / 4,
        draft_prefill_seconds=seconds / 10,
        drafted=more.get("drafted", 0),
        accepted=sum(more.get("accepted", [])),
        drafted_per_position=more.get("possible", []),
        accepted_per_position=more.get("accepted", []),
    )
    return Run(contender, prompt, group, 0, repeat, (1,) * tokens, tuple(more.get("depths", [])), stats, True)


def summary_of(*runs: Run, **more):
    return {summary.name: summary for summary in summarise(BenchRuns(list(runs), **more))}


def test_speed_ups_are_taken_within_a_repeat_and_their_median_over_repeats():
    seconds = {"none": (1.0, 2.0, 4.0), "ngram": (0.5, 0.5, 0.5)}
    runs = [run(name, repeat=i, seconds=s) for name, each in seconds.items() for i, s in enumerate(each)]
    speed = summary_of(*runs)["ngram"].groups["qa"]
    assert (speed.speedup.low, speed.speedup.middle, speed.speedup.high) == pytest.approx((2.0, 4.0, 8.0))
    assert speed.decoding.middle == pytest.approx(20.0)
    assert speed.with_prefill.middle == pytest.approx(10 / 1.5)


def test_long_answers_weigh_more_within_a_group_and_groups_weigh_alike():
    runs = [
        *(run(prompt="1", tokens=90, seconds=9.0), run("ngram", prompt="1", tokens=90, seconds=3.0)),
        *(run(prompt="2", tokens=10, seconds=1.0), run("ngram", prompt="2", tokens=10, seconds=1.0)),
        *(run(prompt="3", group="rag"), run("ngram", prompt="3", group="rag", seconds=0.2)),
    ]
    summary = summary_of(*runs)["ngram"]
    assert summary.groups["qa"].speedup.middle == pytest.approx(10 / 4)
    assert summary.groups["rag"].speedup.middle == pytest.approx(5)
    assert summary.mean.speedup.middle == pytest.approx((10 / 4 + 5) / 2)
    assert summary.turn_quartiles == pytest.approx((2.0, 3.0, 4.0))


def test_acceptance_is_counted_where_it_was_possible():
    runs = [
        *(run(), run(prompt="2")),
        run("ngram", tokens=9, rounds=4, drafted=12, possible=[4, 3], accepted=[3, 2], depths=[3] * 4),
        run("ngram", "2", tokens=3, rounds=2, drafted=2, possible=[2], accepted=[1], depths=[1, 1]),
    ]
    summary = summary_of(*runs)["ngram"]
    assert summary.acceptance_by_position == pytest.approx([4 / 6, 2 / 3])
    assert summary.acceptance_rate == pytest.approx(6 / 14)
    assert summary.mean_accepted_length == pytest.approx(12 / 6)


def test_a_round_is_target_draft_and_the_rest():
    breakdown = summary_of(run(seconds=2.0))["none"].breakdown
    parts = (breakdown.target, breakdown.draft, breakdown.draft_prefill, breakdown.other)
    assert parts == pytest.approx((0.1, 0.05, 0.02, 0.03))
    assert breakdown.shares() == pytest.approx((0.5, 0.25, 0.1, 0.15))
    assert breakdown.round == pytest.approx(0.2)


def test_the_forecast_is_theorem_3_8_with_what_was_measured():
    plain = run(seconds=2.0)
    drafted = run(
        "draft-model",
        tokens=10,
        rounds=4,
        seconds=1.6,
        drafted=20,
        possible=[4, 2, 1],
        accepted=[3, 2, 1],
        depths=[5] * 4,
    )
    forecast = summary_of(plain, drafted)["draft-model"].forecast
    assert forecast.gamma == 5
    assert forecast.alpha == pytest.approx(6 / 7)
    # A round drafts for 0.1 s in five steps; a plain pass takes 0.1 s.
    assert forecast.c == pytest.approx(0.2)
    assert forecast.expected == pytest.approx(theory.walltime_improvement(6 / 7, 5, 0.2))
    assert forecast.expected_at_cost == pytest.approx(2.5 * 0.1 / (0.2 + 0.1))
    assert forecast.measured == pytest.approx(2.0 / 1.6)


def test_drafts_of_several_lengths_are_expected_one_by_one():
    drafted = run("ngram", rounds=8, possible=[4, 2], accepted=[2, 2], depths=[0, 2] * 4)
    forecast = summary_of(run(), drafted)["ngram"].forecast
    tokens = (1 + theory.expected_tokens(forecast.alpha, 2)) / 2
    assert forecast.expected == pytest.approx(tokens / (1 + forecast.gamma * forecast.c))


def test_where_nothing_was_drafted_nothing_is_forecast():
    summaries = summary_of(run(), run("ngram", depths=[0] * 10))
    assert summaries["none"].forecast is None
    assert summaries["ngram"].forecast is None
    assert summaries["ngram"].acceptance_rate is None


def test_differences_are_counted_with_their_largest_gap():
    places = {
        ("ngram", "1", 0): Difference(3, 1, 2, 1e-6, True),
        ("ngram", "2", 0): Difference(5, 1, 2, 1e-2, False),
        ("suffix", "1", 0): Difference(0, 1, None, 0.1, False),
    }
    runs = [run(name, prompt) for name in ("none", "ngram", "suffix") for prompt in ("1", "2")]
    summaries = summary_of(*runs, differences=places)
    assert [(each.differing, each.compared, each.largest_gap) for each in summaries.values()] == [
        (0, 2, None),
        (2, 2, 1e-2),
        (1, 2, 0.1),
    ]


def test_the_report_holds_every_figure_and_nothing_from_elsewhere():
    results = BenchRuns(
        [run(), run("ngram", seconds=0.5, drafted=4, possible=[3], accepted=[2], depths=[1] * 10)],
        differences={("ngram", "1", 0): Difference(3, 1, 2, 1e-6, True)},
        read_seconds=[0.01, 0.03, 0.02],
        skipped={"prompt 9, turn 1": "9999 tokens are too many"},
    )
    summaries = summarise(results)
    record = {"settings": {"repeats": 1}}
    result = json.loads(json.dumps(to_json(results, summaries, record), allow_nan=False))
    assert result["format"] == "headstart-bench/1"
    assert result["floor"]["read_seconds"] == 0.02
    assert result["contenders"][1]["mean"]["speedup"]["middle"] == 2.0
    assert result["differences"][0]["first"]["index"] == 3
    assert [row["decode_seconds"] for row in result["runs"]] == pytest.approx([1.0, 0.5])
    shown = exhibits(results, summaries)
    page = to_html("A benchmark", shown)
    for text in ("ngram", "2.00", "9999 tokens are too many", "Theorem 3.8", "repeats"):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    for table in shown:
        if isinstance(table, Table):
            assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_floor_is_a_part_of_the_round():
    results = BenchRuns([run()], read_seconds=[0.02])
    rounds = next(item for item in exhibits(results, summarise(results)) if item.title == "An average round")
    assert rounds.rows[0][-1] == pytest.approx(0.05 / 0.02)
    assert math.isclose(rounds.rows[0][1], 100.0)
