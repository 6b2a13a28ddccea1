"""Ctrl-C in the middle of a measurement: what is reported, and as what."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cli_runs import headstart

from headstart.engine.engine import Engine
from headstart.engine.sequence import Sequence
from headstart_lab.audit import run
from headstart_lab.audit.cases import cases
from headstart_lab.audit.rules import check_rules
from headstart_lab.workbench import Workbench

CALLS: dict[str, tuple[str | int, ...]] = {
    "acceptance": ("--drafter", "ngram,bigram", "--temperatures", 0),
    "audit": ("--drafters", "ngram,bigram", "--samples", 20),
    "bench": ("--drafters", "ngram,bigram", "--repeats", 1),
    "bench serve": ("--drafter", "ngram", "--concurrency", "2,1", "--requests", 4),
    "plan": ("--drafters", "ngram,bigram", "--batch-sizes", 1, "--repeats", 1),
    "quality": ("--reference", "fp32", "--precisions", "bf16,fp32", "--context", 16),
}
UNITS = {
    "acceptance": "turns",
    "audit": "checks",
    "bench": "turns",
    "bench serve": "loads",
    "plan": "drafters",
    "quality": "precisions",
}


served = pytest.mark.skipif(find_spec("fastapi") is None, reason="needs the extra 'server'")


@pytest.fixture
def call(torch_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A command whose ``steps``-th step is Ctrl-C."""
    rules = check_rules(toys=list(cases())[:2])
    monkeypatch.setattr(run, "check_rules", lambda: rules)
    prompts, text = tmp_path / "prompts.jsonl", tmp_path / "text.txt"
    rows = [{"id": i, "category": "qa", "turns": [f"{'one two ' * i}?"]} for i in (1, 2)]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    text.write_text("One two three four five six seven.")

    def call(command: str, steps: int, *more: object) -> Any:
        left = [steps]

        def advance(*_: object) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        monkeypatch.setattr("headstart.cli.progress.Activity.advance", advance)
        fixed = ["--model", torch_model_dir, "--max-tokens", 6, "--prompts", prompts, "--out", tmp_path / "out"]
        fixed += ["--text", text] if command == "quality" else ["--precision", "fp32"]
        return headstart(*command.split(), *CALLS[command], *fixed, *more)

    return call


@pytest.mark.parametrize(
    ("command", "steps", "measured", "planned"),
    [
        ("acceptance", 3, 3, 4),
        ("audit", 65, 2, 6),
        ("bench", 1, 1, 2),
        pytest.param("bench serve", 13, 1, 2, marks=served),
        ("plan", 23, 1, 2),
        ("quality", 8, 1, 2),
    ],
)
def test_what_was_measured_is_reported_as_a_part(call, tmp_path, command, steps, measured, planned):
    result = call(command, steps)
    assert result.exit_code == 130, result.output
    name = command.replace(" ", "-")
    written = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    unit = UNITS[command]
    assert (written["interrupted"], written[f"{unit}_measured"], written[f"{unit}_planned"]) == (
        True,
        measured,
        planned,
    )
    said = f"this rests on {measured} of {planned} {unit}"
    assert said in result.stderr
    page = (tmp_path / "out" / f"{name}.html").read_text()
    assert (said if command != "audit" else "UNFINISHED, nothing wrong so far: 8 texts of 2 drafters") in page


@pytest.mark.parametrize("command", ["audit", pytest.param("bench serve", marks=served), "plan", "quality"])
def test_nothing_is_reported_of_less_than_one_of_them(call, tmp_path, command):
    result = call(command, 1)
    assert result.exit_code == 130, result.output
    assert result.stdout == ""
    assert f"{UNITS[command]} was done; nothing is reported" in result.stderr
    assert not list((tmp_path / "out").glob("*.json"))


def test_an_unfinished_audit_does_not_pass_but_may_fail(call, tmp_path):
    call("audit", 65)
    written = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert (written["passed"], written["faults"]) == (False, [])


def test_a_check_of_a_plan_rests_on_whole_prompts(call, tmp_path, monkeypatch):
    rounds, prompts = Workbench.full_rounds, set()

    def begin(bench: Workbench, engine: Engine, sequences: list[Sequence], together: int) -> Any:
        if together == 1:  # not those that a profile times
            prompts.add(tuple(sequences[0].tokens))
        if len(prompts) == 2:  # the first decoding of the second prompt
            raise KeyboardInterrupt
        return rounds(bench, engine, sequences, together)

    monkeypatch.setattr(Workbench, "full_rounds", begin)
    assert call("plan", 99, "--check", "--per-group", 2).exit_code == 130
    written = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert (written["interrupted"], written["drafters_measured"]) == (True, 2)
    assert {each["texts"] for each in written["checked"]} == {1}
