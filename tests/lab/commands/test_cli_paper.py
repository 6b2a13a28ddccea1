"""``headstart paper`` as a user meets it."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from headstart.errors import ConfigError
from headstart_lab.commands.paper import paper

app = typer.Typer()
app.command()(paper)


@pytest.fixture
def invoke(tiny_model_dir, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"id": 1, "category": "qa", "turns": ["One two one two?"]}')

    def run(*arguments):
        fixed = ["--model", str(tiny_model_dir), "--precision", "fp32", "--max-tokens", "8", "--prompts", str(file)]
        return CliRunner().invoke(app, [*fixed, *arguments], env={"COLUMNS": "160", "NO_COLOR": "1"})

    return run


def test_tables_lines_json_page_and_picture(invoke, tmp_path):
    out = tmp_path / "out"
    result = invoke("--drafts", "early-exit:layers=2,bigram", "--gammas", "1,2", "--out", str(out))
    assert result.exit_code == 0, result.output
    for text in ("paper's table 2", "paper's table 3", "paper's table 4", "As the paper printed it", "Figure 1"):
        assert text in result.output
    written = json.loads((out / "paper.json").read_text())
    assert written["format"] == "headstart-paper/1"
    keys = [(row["draft"], row["temperature"], row["gamma"]) for row in written["rows"]]
    drafts = ("early-exit:layers=2", "bigram")
    assert keys == [(draft, heat, gamma) for heat in (0.0, 1.0) for draft in drafts for gamma in (1, 2)]
    assert [run["label"] for run in written["figure_5"]] == [
        *("early-exit:layers=2, γ = 2", "early-exit:layers=2, γ = 1", "plain decoding")
    ]
    assert len(written["figure_1"]) == len(written["figure_5"][0]["rounds"])
    page = (out / "paper.html").read_text()
    assert "Figure 5" in page
    assert page.count("<svg") == 1
    for name in ("figure1.svg", "figure5.svg"):
        assert (out / name).read_text().startswith("<svg")


def test_json_alone_on_stdout(invoke):
    result = invoke("--drafts", "unigram", "--gammas", "2", "--temperatures", "0", "--json")
    assert [row["gamma"] for row in json.loads(result.stdout)["rows"]] == [2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gammas", "0"], "--gammas"),
        (["--gammas", "x"], "--gammas"),
        (["--gammas", "3,65"], "1 to 64"),
        (["--drafts", ","], "--drafts"),
        (["--drafts", "none"], "guesses nothing"),
        (["--temperatures", "hot"], "--temperatures"),
    ],
)
def test_bad_input_is_refused(invoke, arguments, said):
    error = invoke(*arguments).exception
    assert isinstance(error, ConfigError)
    assert said in str(error)
