"""``headstart theory`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner, Result

from headstart.errors import ConfigError
from headstart_lab.commands.theory import theory

app = typer.Typer()
app.command()(theory)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120"})


def refused(*arguments: str) -> str:
    """The error's sentence; the application prints it and exits."""
    error = invoke(*arguments).exception
    assert isinstance(error, ConfigError)
    return str(error)


def test_everything_is_shown_by_default() -> None:
    result = invoke()
    assert result.exit_code == 0
    for title in ("Figure 2", "Figure 3", "Figure 4", "Table 1", "Table 4", "A.5", "oracle", "N-gram", "trees"):
        assert title in result.output


def test_named_sections_alone() -> None:
    result = invoke("table1", "ngram")
    assert result.exit_code == 0
    assert "6.86" in result.output
    assert "2.05" in result.output
    assert "1.77" in result.output
    assert "Figure" not in result.output


def test_own_point() -> None:
    result = invoke("--alpha", "0.7", "--gamma", "3")
    assert result.exit_code == 0
    assert "2.533" in result.output
    assert "Table" not in result.output


def test_own_laws_give_alpha() -> None:
    result = invoke("--target-probs", "0.5,0.3,0.2", "--draft-probs", "0.2,0.3,0.5", "--gamma", "1")
    assert result.exit_code == 0
    assert "0.7000" in result.output
    assert "α = 0.7, γ = 1" in result.output


def test_json_holds_values_and_names_infinity_null() -> None:
    result = invoke("figure2", "table1", "--json")
    figure, table = json.loads(result.stdout)
    assert len(figure["curves"]) == 6
    assert figure["curves"][-1]["y"][-1] is None
    assert table["rows"][0][-1] == pytest.approx(1.96)


def test_html_holds_everything_and_marks_the_point(tmp_path: Path) -> None:
    out = tmp_path / "theory.html"
    result = invoke("--alpha", "0.8", "--c", "0.05", "--out", str(out))
    assert result.exit_code == 0
    page = out.read_text(encoding="utf-8")
    assert page.count("<svg xmlns") == 3
    assert "Table 4" in page
    assert page.count('class="mark"') == 2


def test_svg_holds_the_figures(tmp_path: Path) -> None:
    out = tmp_path / "theory.svg"
    assert invoke("figure2", "figure3", "--out", str(out)).exit_code == 0
    root = ElementTree.parse(out).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == 2


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--target-probs", "0.5,0.5"], ["--target-probs", "--draft-probs"]),
        (["--target-probs", "0.5,0.5", "--draft-probs", "1"], ["2", "1"]),
        (["--target-probs", "0.5,0.6", "--draft-probs", "0.5,0.5"], ["--target-probs", "0.5,0.6"]),
        (["--target-probs", "1.5,-0.5", "--draft-probs", "0.5,0.5"], ["--target-probs", "1.5,-0.5"]),
        (["--target-probs", "a,b", "--draft-probs", "0.5,0.5"], ["--target-probs", "a,b"]),
        (["--target-probs", "nan,1", "--draft-probs", "0.5,0.5"], ["--target-probs", "nan"]),
        (["--target-probs", "0.5,0.5", "--draft-probs", "0.5,0.5", "--gamma", "9"], ["--gamma", "9", "8"]),
        (["--gamma", "4"], ["--gamma", "--alpha"]),
        (["--alpha", "0.5", "--c", "inf"], ["--c", "inf"]),
        (["trees", "--ranks", "0.9,0.9"], ["--ranks", "0.9,0.9"]),
        (["table1", "--out", "figure.svg"], ["--out", "figure.svg"]),
        (["figure2", "--out", "figure.png"], ["--out", "figure.png"]),
        (["figure2", "--out", "/nowhere/at/all.svg"], ["--out", "/nowhere/at/all.svg"]),
    ],
)
def test_refuses_in_one_sentence(arguments: list[str], names: list[str]) -> None:
    sentence = refused(*arguments)
    assert all(name in sentence for name in names)
    assert sentence.endswith(".")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "arguments", [["--alpha", "1.5"], ["--alpha", "nan"], ["--gamma", "-1"], ["--c=-1"], ["figure9"]]
)
def test_out_of_range_is_a_usage_error(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2
