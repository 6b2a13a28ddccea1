"""``headstart bench`` as a user meets it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from headstart.drafting.head_files.shipped import ShippedHead, ShippedHeads
from headstart.errors import ConfigError
from headstart_charts.page import Table
from headstart_lab.commands.bench import bench
from headstart_lab.commands.exhibits import print_tables

app = typer.Typer()
app.command()(bench)


@pytest.fixture
def invoke(tiny_model_dir: Path):
    def run(*arguments: str) -> Result:
        fixed = ["--model", str(tiny_model_dir), "--precision", "fp32", "--max-tokens", "6", "--per-group", "1"]
        return CliRunner().invoke(app, [*fixed, *arguments], env={"COLUMNS": "160"})

    return run


def test_tables_json_and_page(invoke, tmp_path):
    result = invoke("--drafters", "ngram,recycling", "--out", str(tmp_path / "new" / "results"))
    assert result.exit_code == 0, result.output
    for text in ("Speed-up by task group", "recycling", "table 4", "An average round", "Acceptance by position"):
        assert text in result.output
    written = json.loads((tmp_path / "new" / "results" / "bench.json").read_text())
    assert [each["name"] for each in written["contenders"]] == ["none", "ngram", "recycling"]
    assert written["settings"]["max_tokens"] == 6
    assert written["interrupted"] is False
    assert written["turns_measured"] == len(written["runs"]) / 3 <= written["turns_planned"]
    assert len(written["model"]["digest"]) == 64
    assert written["provenance"]["versions"]["torch"]
    assert len(written["provenance"]["load_average_after"]) == 3
    assert (tmp_path / "new" / "results" / "bench.html").read_text().startswith("<!doctype html>")


def test_json_alone_on_stdout(invoke):
    result = invoke("--drafters", "ngram", "--json", "--repeats", "2")
    assert result.exit_code == 0
    assert {row["repeat"] for row in json.loads(result.stdout)["runs"]} == {0, 1}


def test_left_to_itself_it_measures_what_pays_within_its_budget(tiny_model_dir, monkeypatch):
    heads = ShippedHeads({"bigram": ShippedHead(Path(), "for this test")}, {})
    monkeypatch.setattr("headstart_lab.workbench.heads_for", lambda model: heads)
    monkeypatch.setattr("headstart_lab.bench.extent.MOST_REPEATS", 2)
    fixed = ["--model", str(tiny_model_dir), "--precision", "fp32", "--json"]
    result = CliRunner().invoke(app, [*fixed, "--minutes", "0.05"])
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert [each["name"] for each in written["contenders"]] == [
        "none",
        "suffix",
        "recycling",
        "ngram",
        "auto",
        "bigram",
    ]
    assert written["settings"]["minutes"] == 0.05
    assert written["settings"]["max_tokens"] <= 128
    assert re.search(r"^\d s for 5 drafters and plain decoding: 6 prompts", result.stderr, re.MULTILINE)
    assert set(written["provenance"]["machine"]) >= {"others", "stolen", "busy", "sentence"}


def test_a_limit_and_no_limit_exclude_each_other(invoke):
    assert invoke("--full", "--minutes", "3").exit_code == 2


def test_what_was_asked_for_in_numbers_has_no_limit_of_time(invoke):
    assert json.loads(invoke("--drafters", "ngram", "--json").stdout)["settings"]["minutes"] is None
    full = invoke("--drafters", "ngram", "--json", "--full", "--repeats", "2")
    assert json.loads(full.stdout)["settings"]["repeats"] == 2


def test_prompts_of_ones_own(invoke, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"id": "mine", "category": "poems", "turns": ["Hello"]}')
    result = json.loads(invoke("--drafters", "ngram", "--json", "--prompts", str(file)).stdout)
    assert {row["group"] for row in result["runs"]} == {"poems"}
    assert result["settings"]["prompt_ids"] == ["mine"]


def test_lengths_have_a_table_of_their_own(invoke):
    result = invoke("--drafters", "ngram", "--input-tokens", "200,400")
    assert result.exit_code == 0, result.output
    assert "By length of the prompt" in result.stdout
    written = json.loads(invoke("--drafters", "ngram", "--json", "--input-tokens", "200,400").stdout)
    assert written["settings"]["input_tokens"] == [200, 400]
    assert {row["group"] for row in written["runs"]} == {"200 tokens", "400 tokens"}
    assert "leaves 506 for a prompt" in invoke("--drafters", "ngram", "--input-tokens", "510").exception.args[0]


def test_ctrl_c_keeps_what_was_measured(invoke, tmp_path, monkeypatch):
    told = 0

    def advance(*_: object) -> None:
        nonlocal told
        told += 1
        if told == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("headstart.cli.progress.Activity.advance", advance)
    result = invoke("--drafters", "ngram", "--out", str(tmp_path))
    assert result.exit_code == 130
    written = json.loads((tmp_path / "bench.json").read_text())
    assert len(written["runs"]) == 4
    assert written["skipped"] == {}
    assert written["interrupted"] is True
    assert written["turns_measured"] == 2 < written["turns_planned"]
    said = f"rests on 2 of {written['turns_planned']} turns"
    assert said in result.stderr
    assert said in (tmp_path / "bench.html").read_text()


def test_ctrl_c_before_the_first_turn_reports_nothing(invoke, tmp_path, monkeypatch):
    def run(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headstart_lab.bench.run.Sitting.run", run)
    result = invoke("--drafters", "ngram", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "nothing is reported" in result.stderr
    assert not (tmp_path / "bench.json").exists()


def test_a_path_that_cannot_be_written_is_refused_before_anything_is_measured(invoke, tmp_path):
    (tmp_path / "file").write_text("")
    error = invoke("--drafters", "no such drafter", "--out", str(tmp_path / "file")).exception
    assert isinstance(error, ConfigError)
    assert "cannot be written" in str(error)


def test_a_table_in_a_file_loses_nothing(capsys):
    columns = (
        "drafter",
        "speed-up",
        "middle half of repeats",
        "with turns",
        "tokens/s",
        "prefill ms",
        "tokens a round",
    )
    print_tables([Table("Speed", columns, (("none", *["1.00\u20131.01"] * 6),))])
    _, header, row = capsys.readouterr().out.strip().splitlines()
    assert header.split() == " ".join(columns).split()
    assert row.split() == ["none", *["1.00\u20131.01"] * 6]


def test_cells_are_measured_kept_and_charted(invoke, tmp_path):
    given = ["--cells", "--users", "1,2", "--temperatures", "0", "--inputs", "short", "--repeats", "1"]
    given += ["--per-group", "1", "--max-tokens", "128", "--quiet"]
    kept = ["--results", str(tmp_path / "cells.jsonl"), "--out", str(tmp_path)]
    result = invoke(*given, *kept, "--drafters", "suffix")
    assert result.exit_code == 0, result.output
    assert re.search(r"suffix: the worst of \d+ cells is fp32, short, \d users?, temperature 0", result.stdout)
    written = json.loads((tmp_path / "bench-cells.json").read_text())
    assert written["worst"]["suffix"]["cell"]["stand"]["precision"] == "fp32"
    assert written["settings"]["minutes"] == 60
    assert not any(each["differing"] for each in written["cells"])
    page = (tmp_path / "bench-cells.html").read_text()
    assert "<svg" in page
    assert "over plain decoding; worst" in page
    # What is there is not measured again.
    again = json.loads(invoke(*given, *kept, "--drafters", "suffix", "--json").stdout)
    assert again["turns"] == written["turns"]
    assert again["cells_measured"] == 0
    other = invoke(*given, *kept[:2], "--drafters", "suffix", "--ignore-eos")
    assert "ignore_eos is False, not True" in str(other.exception)


def test_options_of_cells_go_with_cells(invoke):
    assert invoke("--users", "2").exit_code == 2
    assert invoke("--cells", "--input-tokens", "100").exit_code == 2
    assert "part of the planner" in str(invoke("--cells", "--without", "rets").exception)
    assert "--precisions names 'fp3'" in str(invoke("--cells", "--precisions", "fp3").exception)


def test_what_takes_long_to_import_is_said_meanwhile(tiny_model_dir: Path) -> None:
    output, terminal = pty.openpty()
    command = [sys.executable, "-m", "headstart", "bench", "--cells", "--model", str(tiny_model_dir)]
    shows = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, env=shows) as process:
        os.close(terminal)
        shown = os.read(output, 1 << 16)
        while b"Starting" not in shown:  # a terminal that is closed ends this with an error
            shown += os.read(output, 1 << 16)
        process.kill()
    os.close(output)
    assert b"Loading" not in shown
