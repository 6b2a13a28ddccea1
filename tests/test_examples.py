"""The examples run, on the tiny model instead of the default one."""

from __future__ import annotations

import builtins
import runpy
from pathlib import Path
from typing import Any

import pytest

import headstart
from headstart import LLM

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.fixture
def on_the_tiny_model(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TinyLLM(LLM):
        def __init__(self, model: Any = "smollm2", *args: Any, **kwargs: Any) -> None:
            super().__init__(tiny_model_dir if model == "smollm2" else model, *args, **kwargs)

    monkeypatch.setattr(headstart, "LLM", TinyLLM, raising=False)
    said = iter(["Hello", "And then?", ""])
    monkeypatch.setattr(builtins, "input", lambda _: next(said))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.usefixtures("on_the_tiny_model")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out) > 100
