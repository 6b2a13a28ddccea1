"""What memory a model takes: said on a terminal by every command that measures one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import headstart

from headstart_lab.audit import run
from headstart_lab.audit.cases import cases
from headstart_lab.audit.rules import check_rules

GUESSING = "ngram,draft-model:layers=2"
CALLS = [
    ("bench", "--drafters", GUESSING, "--repeats", 2),
    ("plan", "--drafters", GUESSING, "--batch-sizes", 1, "--repeats", 1, "--check"),
    ("audit", "--drafters", GUESSING, "--samples", 20),
    ("acceptance", "--drafter", GUESSING),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_a_terminal_is_told_once_of_the_target_and_of_each_drafter_that_takes_any(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: tuple[str | int, ...]
) -> None:
    said: list[str] = []
    monkeypatch.setattr("headstart.cli.progress.Activity.say", lambda _, line: said.append(line))
    monkeypatch.setattr(run, "check_rules", lambda: check_rules(toys=list(cases())[:2]))
    # The laws of an audit take long and build no other drafter.
    monkeypatch.setattr(run, "compute_law", lambda *_: None)
    monkeypatch.setattr(run, "check_law", lambda *_: [])
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": 1, "category": "qa", "turns": ["One two one two?"]}))
    model = ("--model", tiny_model_dir, "--precision", "fp32", "--max-tokens", 6, "--prompts", prompts)
    result = headstart(*call, *model, "--json")
    assert result.exit_code == 0, result.output
    alone, drafting = said
    assert alone.startswith("Memory: ")
    assert drafting.startswith("Memory with draft-model:layers=2: ")
    assert "drafters" not in alone
    assert all(part in drafting for part in ("weights", "cache", "drafters"))


def test_the_quality_of_a_precision_says_what_each_takes(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("headstart.cli.progress.Activity.say", lambda _, line: said.append(line))
    text = tmp_path / "text.txt"
    text.write_text("One two three four five six seven.")
    model = ("--model", tiny_model_dir, "--reference", "fp32", "--precisions", "bf16", "--max-tokens", 4)
    result = headstart("quality", *model, "--text", text, "--context", 16, "--per-group", 1, "--json")
    assert result.exit_code == 0, result.output
    assert [line.split(":")[0] for line in said] == ["Memory in fp32", "Memory in bf16"]
    assert all("weights" in line and "cache" in line for line in said)
