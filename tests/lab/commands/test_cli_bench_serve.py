"""``headstart bench serve`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import headstart, refusal

pytest.importorskip("fastapi", reason="needs the extra 'server'")


@pytest.mark.thorough
def test_a_server_made_here_is_measured_with_speculation_and_without(tiny_model_dir: Path, tmp_path: Path) -> None:
    arguments = ["--model", tiny_model_dir, "--precision", "fp32", "--drafter", "ngram", "--max-tokens", 6, "--quiet"]
    load = ["--concurrency", "1,3", "--rates", "50", "--requests", 4, "--repeats", 2]
    result = headstart("bench", "serve", *arguments, *load, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for text in ("Throughput", "Time to the first token", "Inter-token latency", "3 at a time", "50/s"):
        assert text in result.stdout
    written = json.loads((tmp_path / "bench-serve.json").read_text())
    assert [(each["mode"], each["load"]["users"]) for each in written["summaries"]] == [
        (mode, users) for users in (1, 3, None) for mode in ("ngram", "off")
    ]
    assert all(each["requests"] == 8 and not each["errors"] for each in written["summaries"])
    assert written["server"]["made_here"] is True
    assert written["provenance"]["versions"]["torch"]
    for one, other in zip(written["runs"][::2], written["runs"][1::2], strict=True):
        # Greedy: the same tokens, however they came.
        assert [each["tokens"] for each in one["answers"]] == [each["tokens"] for each in other["answers"]]
        assert all(each["rounds"] == each["tokens"] for each in other["answers"])
    assert (tmp_path / "bench-serve.html").read_text().startswith("<!doctype html>")


def test_answers_sent_along_are_guessed_from_at_the_rates_asked_for(tiny_model_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [{"id": i, "category": "qa", "turns": [f"one two {i}"]} for i in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))
    arguments = ["--model", tiny_model_dir, "--precision", "fp32", "--max-tokens", 40, "--ignore-eos", "--quiet"]
    load = ["--concurrency", "2", "--requests", 6, "--predict", "--prompts", file, "--json"]
    load += ["--drafter", "synthetic:rates=1,1"]
    result = headstart("bench", "serve", *arguments, *load)
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    guessed, off = written["summaries"]
    assert (guessed["mode"], off["mode"]) == ("synthetic", "off")
    assert guessed["tokens_per_round"] > 2.5 > off["tokens_per_round"] == 1
    assert written["settings"]["predict"] is True


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--concurrency", "1,x"], "--concurrency holds 'x'"),
        (["--concurrency", "0"], "--concurrency holds '0'"),
        (["--rates", "-1"], "--rates holds '-1'"),
        (["--concurrency", ""], "both empty"),
        (["--drafter", "none"], "--drafter is 'none'"),
        (["--drafter", "synthetic:rates=0.5,0.6"], "rates is '0.5,0.6'; give numbers from 1 down to 0"),
        (["--url", "localhost"], "--url is 'localhost'"),
        (["--url", "http://127.0.0.1:1", "--api-key-file", "/nowhere"], "the API keys cannot be read from /nowhere"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(arguments: list[str], named: str) -> None:
    assert named in refusal(headstart("bench", "serve", *arguments))


def test_a_server_that_is_not_there_is_a_failure() -> None:
    said = refusal(headstart("bench", "serve", "--url", "http://127.0.0.1:1"), status=1)
    assert "no server answers at http://127.0.0.1:1 (Connection refused); start one" in said
