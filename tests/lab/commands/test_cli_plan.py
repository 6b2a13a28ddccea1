"""``headstart plan`` as a user meets it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import typer
from cli_runs import headstart
from typer.testing import CliRunner

from headstart.cli.progress import Activity
from headstart.drafting.head_files.shipped import ShippedHead, ShippedHeads
from headstart.errors import ConfigError
from headstart_lab.commands.plan import plan

app = typer.Typer()
app.command()(plan)


@pytest.fixture
def invoke(tiny_model_dir, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": 1, "category": "qa", "turns": ["One two one two?"]}')

    def run(*arguments):
        fixed = ["--model", str(tiny_model_dir), "--precision", "fp32", "--max-tokens", "6", "--prompts", str(file)]
        fixed += ["--batch-sizes", "2", "--repeats", "1", "--quiet"]
        return CliRunner().invoke(app, [*fixed, *arguments], env={"COLUMNS": "160"})

    return run


def test_tables_json_and_page(invoke, tmp_path, tiny_model_dir, monkeypatch):
    totals, units = [], []
    monkeypatch.setattr(Activity, "show", lambda self, text, total=None: totals.append(total))
    monkeypatch.setattr(Activity, "advance", lambda self, steps, tokens: units.append(steps))
    result = invoke("--drafters", "bigram,ngram", "--check", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    for text in ("Recommended", "Prediction and measurement", "Drafters, one sequence at a time"):
        assert text in result.output
    written = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert [each["batch"] for each in written["recommended"]] == [1, 2]
    assert [each["drafter"] for each in written["drafters"]] == ["none", "bigram", "ngram"]
    assert all(each["options"].startswith("--drafter ") for each in written["recommended"])
    lengths = {each["length"] for each in written["forecasts"] if each["drafter"] == "bigram"}
    assert lengths == set(range(1, 6))
    for pasted in {each["options"] for each in written["recommended"] + written["checked"]}:
        said = headstart("generate", "One two", "--max-tokens", 4, "--model", tiny_model_dir, *shlex.split(pasted))
        assert said.exit_code == 0, said.output
    # What is left can be foreseen from the first passes on.
    (total,) = filter(None, totals)
    assert sum(units) == total
    assert len(units) > 20
    assert all(each["seconds"] > 0 for each in written["passes"])
    assert "<!doctype html>" in (tmp_path / "out" / "plan.html").read_text()


def test_left_to_itself_it_looks_at_the_heads_that_come_along(invoke, monkeypatch):
    heads = ShippedHeads({"bigram": ShippedHead(Path(), "for this test")}, {})
    monkeypatch.setattr("headstart_lab.workbench.heads_for", lambda model: heads)
    drafters = [each["drafter"] for each in json.loads(invoke("--json").stdout)["drafters"]]
    assert drafters == ["none", "suffix", "recycling", "ngram", "bigram"]


@pytest.mark.thorough
def test_of_all_drafters_those_that_lack_something_are_left_out_with_the_reason(invoke):
    written = json.loads(invoke("--drafters", "all", "--json").stdout)
    planned = {each["drafter"] for each in written["drafters"]}
    assert {"none", "ngram", "suffix", "early-exit"} <= planned
    assert not planned & set(written["skipped"])
    assert "model" in written["skipped"]["medusa"]
    assert "Left out" in invoke("--drafters", "all").output
    assert isinstance(invoke("--drafters", "medusa").exception, ConfigError)


@pytest.mark.parametrize("sizes", ["", "0", "two", "1,,2", "65"])
def test_wrong_batch_sizes_are_refused_before_anything_is_read(sizes):
    result = CliRunner().invoke(app, ["--model", "nowhere", "--batch-sizes", sizes])
    assert isinstance(result.exception, ConfigError)
    assert "--batch-sizes" in str(result.exception)


def test_it_measures_whoever_computes_the_model(invoke):
    result = invoke("--drafters", "ngram", "--backend", "transformers", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["model"]["backend"] == "transformers-fp32"


@pytest.mark.parametrize("named", ["eagle3", "p-eagle", "dflash", "mtp", "draft-model=1M"])
def test_what_a_drafter_would_bring_that_is_not_there(invoke, named, tmp_path):
    result = invoke("--what-if", named, "--rates", "0.8,0.6,0.3", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert f"What {named} would bring" in result.output
    answers = json.loads((tmp_path / "what-if.json").read_text())["what_if"]
    assert [each["batch"] for each in answers] == [1, 2]
    for each in answers:
        assert [chain["tokens"] for chain in each["lengths"]] == pytest.approx(
            [each["batch"] * tokens for tokens in (1.0, 1.8, 2.4, 2.7)]
        )
        assert all(chain["draft"] > 0 for chain in each["lengths"][1:])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("--what-if", "nobody", "--rates", "0.5"), "there is no stand-in for drafter 'nobody'"),
        (("--what-if", "eagle3=1B"), "leave '1B' out"),
        (("--what-if", "draft-model"), "give draft-model=0.5B"),
        (("--what-if", "draft-model=big"), "give it as 135M or 0.5B"),
        (("--rates", "0.5"), "no --what-if names whose"),
        (("--what-if", "eagle3", "--drafters", "ngram"), "--drafters is given with --what-if"),
        (("--what-if", "eagle3", "--rates", "0.5,0.9"), "give numbers from 1 down to 0"),
    ],
)
def test_what_cannot_be_supposed_is_refused_before_a_model_is_looked_for(invoke, wrong, sentence):
    result = invoke(*wrong, "--model", "no/such/model")
    assert isinstance(result.exception, ConfigError)
    assert sentence in str(result.exception)


def test_what_does_not_run_here_is_refused_before_anything_is_measured(invoke, monkeypatch):
    shown = []
    monkeypatch.setattr(Activity, "show", lambda self, text, total=None: shown.append(text))
    result = invoke("--what-if", "self", "--rates", "0.5")
    assert isinstance(result.exception, ConfigError)
    assert "in fewer bits" in str(result.exception)
    assert [text.partition(" ")[0] for text in shown] == ["Starting", "Loading"]
