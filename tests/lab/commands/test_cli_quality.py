"""``headstart quality`` as a user meets it."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from headstart_lab.commands.quality import quality

app = typer.Typer()
app.command()(quality)


@pytest.fixture
def invoke(tiny_model_dir, tmp_path):
    text, prompts = tmp_path / "text.txt", tmp_path / "prompts.jsonl"
    text.write_text("One two three four five six seven.", encoding="utf-8")
    rows = [{"id": i, "category": "qa", "turns": [f"{'one two ' * i}?"]} for i in (1, 2)]
    prompts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    fixed = ["--model", tiny_model_dir, "--reference", "fp32", "--text", text, "--prompts", prompts]

    def invoke(*arguments):
        command = [*fixed, "--context", 16, "--max-tokens", 6, *arguments]
        return CliRunner().invoke(app, [str(each) for each in command], env={"COLUMNS": "200"})

    return invoke


def test_a_precision_is_judged_in_one_line(invoke, tmp_path):
    result = invoke("--precisions", "bf16", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    verdict = result.stdout.rstrip().splitlines()[-1]
    assert verdict.startswith("bf16 is ")
    written = json.loads((tmp_path / "out" / "quality.json").read_text())
    assert written["verdicts"] == [verdict]
    assert written["precisions"][0]["mean_kl"] > 0
    assert written["settings"]["prompt_ids"] == ["1", "2"]
    assert verdict.split(":")[0] in (tmp_path / "out" / "quality.html").read_text()


def test_the_reference_against_itself_is_no_different(invoke):
    written = json.loads(invoke("--precisions", "fp32", "--json").stdout)
    (row,) = written["precisions"]
    assert (row["mean_kl"], row["same_best_token"], row["perplexity_ratio"], row["greedy_equal"]) == (0, 1, 1, 2)
    assert row["tokens"] == len("One two three four five six seven.") - 1


def test_what_this_machine_cannot_compute_is_left_out_unless_named(invoke, monkeypatch):
    monkeypatch.setattr("headstart.loading.model.load_library", lambda: None)
    written = json.loads(invoke("--json").stdout)
    assert [row["precision"] for row in written["precisions"]] == ["bf16"]
    assert set(written["skipped"]) == {"int8", "int8-fast", "int4", "int4-fast", "blocks"}
    assert "needs the native pass" in str(invoke("--precisions", "int8").exception)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--precisions", " , ", "names with commas"),
        ("--precisions", "int7", "'int7'"),
        ("--precisions", "auto", "--precisions is auto"),
        ("--reference", "auto", "--reference is auto"),
        ("--text", "/dev/null", "is empty"),
    ],
)
def test_misuse_is_refused_in_one_sentence(invoke, option, value, message):
    result = invoke(option, value)
    assert result.exit_code
    assert message in str(result.exception)
