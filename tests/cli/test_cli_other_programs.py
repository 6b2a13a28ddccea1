"""Habits from llama.cpp, Ollama and vLLM: their names are taken where they mean the same, and explained elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import headstart, refusal, rows

from headstart.cli import other_programs
from headstart.cli.commands import OWN


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ``-t`` sets is undone."""
    import torch

    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", str(before))
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_call_of_llama_cpp_means_the_same(tiny_model_dir: Path) -> None:
    ours = ("--prompt", "abc", "--max-tokens", 7, "--max-context", 64, "--temperature", 0, "--threads", 1, "--seed", 3)
    theirs = ("-p", "abc", "-n", 7, "-c", 64, "--temp", 0, "-t", 1, "-s", 3)
    longer = ("--prompt", "abc", "--n-predict", 7, "--ctx-size", 64, "--temp", "0", "--threads", 1, "--seed", 3)
    said = [
        rows(headstart("generate", "-m", tiny_model_dir, "--precision", "fp32", "--json", *call))[0]["token_ids"]
        for call in (ours, theirs, longer)
    ]
    assert said[0] == said[1] == said[2]
    assert len(said[0]) == 7
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["generate", "x", "-ngl", "99"], "--device"),
        (["generate", "x", "--n-gpu-layers=99"], "--device"),
        (["generate", "x", "-fa"], "leave it out"),
        (["generate", "x", "-cnv"], "headstart chat"),
        (["generate", "-f", "prompt.txt"], "headstart generate < FILE"),
        (["generate", "x", "-hf", "org/name"], "--model ORG/NAME"),
        (["serve", "--api-key", "secret"], "--api-key-file"),
        (["serve", "-tp", "2"], "one device"),
        (["serve", "--context-shift"], "the text would no longer be the model's; raise max_context (--max-context)"),
        (["serve", "--gpu-memory-utilization", "0.9"], "--cache-tokens"),
        (["serve", "-p", "Hi"], "headstart generate"),
        (["run", "smollm2"], "headstart chat"),
        (["pull", "smollm2"], "--model"),
        (["serve", "org/name"], "--model"),
        (["native", "-t", "4"], "threads"),
    ],
)
def test_what_cannot_be_had_by_this_name_gets_a_hint(arguments: list[str], instead: str) -> None:
    assert instead in refusal(headstart(*arguments))


def test_a_value_that_looks_like_such_a_name_is_a_value(tiny_model_dir: Path) -> None:
    call = ("generate", "-m", tiny_model_dir, "--precision", "fp32", "-n", 2, "--temp", 0)
    assert headstart(*call, "--", "-ngl").exit_code == 0


@pytest.mark.parametrize("value", ["0.7", "8.5", "0"])
def test_a_temperature_is_not_taken_for_threads(value: str) -> None:
    assert "--threads" in refusal(headstart("generate", "x", "-t", value))


def test_no_short_name_means_something_else() -> None:
    """What llama.cpp's letters mean here, in every command that has them."""
    meant = {letter: name for name, others in other_programs.SAME.items() for letter in others if letter[1] != "-"}
    meant |= {"-t": "--threads", "-m": "--model", "-p": "--prompt", "-o": "--out", "-h": "--help"}
    import typer

    from headstart.cli.main import app

    group = typer.main.get_command(app)
    for name in OWN:
        command = group.commands[name]  # type: ignore[attr-defined]
        for param in command.params:
            for letter in param.opts:
                assert meant.get(letter, param.opts[0]) in param.opts, (name, letter)
