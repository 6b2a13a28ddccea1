"""``headstart audit`` as a user meets it: its verdict, its exit status, its report."""

from __future__ import annotations

import json
from html import escape

import pytest
import typer
from devices import on
from typer.testing import CliRunner

from headstart.cli.progress import Activity
from headstart.drafting import registry
from headstart.drafting.method import Method
from headstart_lab.audit import run
from headstart_lab.audit.cases import cases
from headstart_lab.audit.rules import check_rules
from headstart_lab.commands.audit import audit

app = typer.Typer()
app.command()(audit)


@pytest.fixture
def invoke(torch_model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "check_rules", lambda: check_rules(toys=list(cases())[:2]))
    for name, place in (
        ("Liar", "broken_parts"),
        ("Meddler", "broken_parts"),
        ("NoDrafter", "headstart.drafting.methods.none.drafter"),
    ):
        monkeypatch.setitem(registry._own(), name, Method(name, "", "", f"{place}:{name}"))
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": i, "category": "qa", "turns": [f"{'one two ' * i}?"]} for i in range(1, 4)]
    file.write_text("\n".join(map(json.dumps, rows)))

    def invoke(*arguments):
        fixed = ["--model", str(torch_model_dir), "--precision", "fp32", "--max-tokens", "8", "--prompts", str(file)]
        return CliRunner().invoke(app, [*fixed, "--samples", "50", *arguments], env={"COLUMNS": "200"})

    return invoke


def test_right_drafters_pass(invoke, tmp_path, monkeypatch):
    totals, units = [], []
    monkeypatch.setattr(Activity, "show", lambda self, text, total=None: totals.append(total))
    monkeypatch.setattr(Activity, "advance", lambda self, steps, tokens: units.append(steps))
    result = invoke("--drafters", "recycling,draft-model:layers=2", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    verdict = result.stdout.rstrip().splitlines()[-1]
    assert verdict.startswith("WEAK PASS: 12 texts of 3 drafters")
    assert "off would not be seen: give more --samples" in verdict
    written = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert written["passed"]
    assert [sum(units)] == list(filter(None, totals))
    assert len(units) > 50
    assert written["verdict"] == verdict
    assert all(0 < law["detectable_total_variation"] < 1 for law in written["laws"])
    assert {law["rule"] for law in written["laws"] if law["drafter"].startswith("draft-model")} == {"auto", "rejection"}
    assert escape(verdict) in (tmp_path / "out" / "audit.html").read_text()


@pytest.mark.thorough
def test_a_target_on_an_accelerator_is_judged_there(invoke, tmp_path):
    with on("simulated") as device:
        result = invoke("--drafters", "suffix", "--device", device, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip().splitlines()[-1].startswith("WEAK PASS")
    assert json.loads((tmp_path / "audit.json").read_text())["model"]["backend"] == "torch-fp32"


@pytest.mark.thorough
def test_a_drafter_that_lies_about_its_law_fails(invoke, tmp_path):
    result = invoke("--drafters", "Liar", "--samples", "400", "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert result.stdout.rstrip().splitlines()[-1].startswith("FAIL: Liar (auto): its samples do not follow")
    assert not json.loads((tmp_path / "out" / "audit.json").read_text())["passed"]


def test_a_drafter_that_meddles_fails(invoke):
    result = invoke("--drafters", "Meddler", "--json")
    assert result.exit_code == 1
    written = json.loads(result.stdout)
    assert written["verdict"].startswith("FAIL: Meddler")
    assert written["texts"][1]["greedy_differences"][0]["index"] == 2


@pytest.mark.thorough
def test_drafters_that_guessed_nothing_right_are_named(invoke):
    result = invoke("--drafters", "NoDrafter")
    assert result.exit_code == 0
    assert "No guess of NoDrafter was accepted" in result.stdout


@pytest.mark.thorough
def test_too_few_samples_are_said_to_find_nothing(invoke):
    result = invoke("--drafters", "Liar", "--samples", "1")
    assert result.exit_code == 0
    assert "not known: 1 of each are too few to find anything" in result.stdout.rstrip().splitlines()[-1]
    assert "nothing" in result.stdout
