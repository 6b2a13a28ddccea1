"""What is said of drafters none of whose guesses was accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_bench_summary import run

from headstart_lab.bench.drafters_report import exhibits
from headstart_lab.bench.remarks import remarks
from headstart_lab.bench.run import BenchRuns
from headstart_lab.bench.summary import Spread, summarise


def measured(name: str, accepted: int, drafted: int = 1000) -> BenchRuns:
    more = {"drafted": drafted, "accepted": [accepted], "possible": [drafted], "depths": [1] * 10} if drafted else {}
    return BenchRuns([run(), run(name, **more)])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("draft-model", "without a model it runs some of the target's own layers, which nobody has taught to guess"),
        ("early-exit", "some of the target's own layers"),
        ("draft-model:model=small", "small has learnt too little of what this target says"),
        ("eagle3:model=heads/mine", "heads/mine has learnt too little"),
        ("ngram", "what it knows does not occur in these texts"),
    ],
)
def test_a_useless_drafter_is_marked_with_the_reason(name: str, reason: str) -> None:
    results = measured(name, accepted=4)
    summaries = summarise(results)
    assert reason in remarks(summaries)[name]
    assert remarks(summaries)[name].startswith("0.4% of its guesses were accepted")
    tables = {each.title: each for each in exhibits(results, summaries)}
    assert tables["Speed"].rows[1][0] == f"{name} *"
    assert tables["Marked with *"].rows == ((name, remarks(summaries)[name]),)


def test_one_that_guesses_nothing_is_marked_and_a_useful_one_is_not() -> None:
    assert remarks(summarise(measured("ngram", 0, drafted=0)))["ngram"].startswith("It guessed nothing")
    assert not remarks(summarise(measured("ngram", 400)))


def test_a_speed_up_that_cannot_be_told_is_marked() -> None:
    plain, summary = summarise(measured("ngram", 400))
    uneven = replace(summary, mean=replace(summary.mean, speedup=Spread(1.2, 0.8, 1.9)))
    assert "between 0.80 and 1.90: too uncertain" in remarks([plain, uneven])["ngram"]
