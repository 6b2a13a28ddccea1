"""``headstart acceptance`` as a user meets it."""

from __future__ import annotations

import json
from itertools import count

import pytest
import typer
from typer.testing import CliRunner

from headstart.errors import ConfigError
from headstart_lab.bench.prompts import BenchPrompt, by_turns_of_groups
from headstart_lab.commands.acceptance import acceptance

app = typer.Typer()
app.command()(acceptance)


@pytest.fixture
def invoke(tiny_model_dir, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": 1, "category": "qa", "turns": ["One two one two?", "And then?"]}')

    def run(*arguments):
        fixed = ["--model", str(tiny_model_dir), "--precision", "fp32", "--max-tokens", "6", "--prompts", str(file)]
        return CliRunner().invoke(app, [*fixed, *arguments], env={"COLUMNS": "160"})

    return run


def test_tables_json_and_page(invoke, tmp_path):
    result = invoke("-d", "draft-model:layers=2,bigram", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    for text in ("paper's table 3", "paper's table 5", "by token kind", "by context length", "T = 1, by turn"):
        assert text in result.output
    written = json.loads((tmp_path / "out" / "acceptance.json").read_text())
    pairs = [(each["drafter"], each["temperature"]) for each in written["results"]]
    assert pairs == [("draft-model:layers=2", 0.0), ("draft-model:layers=2", 1.0), ("bigram", 0.0), ("bigram", 1.0)]
    assert "<!doctype html>" in (tmp_path / "out" / "acceptance.html").read_text()


def test_json_alone_on_stdout(invoke):
    result = invoke("-d", "bigram", "--temperatures", "0.5", "--json")
    assert [each["temperature"] for each in json.loads(result.stdout)["results"]] == [0.5]


def test_of_all_drafters_those_that_lack_something_are_left_out_with_the_reason(invoke):
    written = json.loads(invoke("-d", "all", "--temperatures", "0", "--json").stdout)
    measured = {each["drafter"] for each in written["results"]}
    assert {"ngram", "suffix", "early-exit"} <= measured
    assert not measured & set(written["skipped"])
    assert "medusa" in written["skipped"]


@pytest.mark.parametrize("temperatures", ["", "x", "-1", "0,nan"])
def test_bad_temperatures_are_refused(invoke, temperatures):
    error = invoke("-d", "bigram", "--temperatures", temperatures).exception
    assert isinstance(error, ConfigError)
    assert "--temperatures" in str(error)


def test_plain_decoding_alone_guesses_nothing(invoke):
    error = invoke("-d", "none").exception
    assert isinstance(error, ConfigError)
    assert "guesses nothing" in str(error)


def test_without_options_it_measures_what_pays(invoke):
    written = json.loads(invoke("--json").stdout)
    measured = {each["drafter"] for each in written["results"]}
    assert {"ngram", "suffix"} <= measured
    assert "none" not in measured


def test_when_the_time_is_over_the_other_drafters_are_left_out(invoke, monkeypatch):
    seen = count(0, 200)
    monkeypatch.setattr("headstart_lab.acceptance.measuring.time.perf_counter", lambda: float(next(seen)))
    written = json.loads(invoke("-d", "ngram,suffix,bigram", "--temperatures", "0", "--json").stdout)
    assert [each["drafter"] for each in written["results"]] == ["ngram"]
    assert {name: why[:17] for name, why in written["skipped"].items()} == dict.fromkeys(
        ("suffix", "bigram"), "the time was over"
    )


def test_prompts_of_all_groups_take_turns():
    prompts = [BenchPrompt(str(place), name, ("Hi",)) for place, name in enumerate("aaabbc")]
    assert [prompt.id for prompt in by_turns_of_groups(prompts)] == ["0", "3", "5", "1", "4", "2"]


def test_a_limit_and_none_do_not_go_together(invoke):
    assert "--full has no limit" in str(invoke("--full", "--minutes", "1").output)
