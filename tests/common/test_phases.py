"""What a slow start is doing is told to whoever listens."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headstart import LLM
from headstart.backends.native import loader, toolchain
from headstart.backends.native.isa import INSTRUCTION_SETS
from headstart.cli.progress import Activity
from headstart.common.phases import Phase, heard, phase


def test_an_inner_phase_ends_where_the_outer_goes_on() -> None:
    told: list[str] = []
    with phase("nobody listens"), heard(lambda each: told.append(each.sentence)), phase("outer"):
        with phase("inner"):
            pass
        with pytest.raises(ValueError, match="x"), phase("broken"):
            raise ValueError("x")
    with phase("nobody listens any more"):
        pass
    assert told == ["outer", "inner", "outer", "broken", "outer", "nobody listens"]


def test_a_start_names_its_phases(tiny_model_dir: Path) -> None:
    told: list[str] = []
    with heard(lambda each: told.append(each.sentence)):
        LLM(tiny_model_dir, "auto", precision="fp32")
    names = list(dict.fromkeys(told))
    assert names[0] == f"Loading {tiny_model_dir}"
    assert [name for name in names if not name.startswith("Compiling")][1:] == [
        "Preparing the drafter auto",
        "Timing passes, to know how many guesses pay",
    ]


def test_compiling_is_said_to_be_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(_: object) -> Path:
        return Path("/no/such/library")

    told: list[Phase] = []
    monkeypatch.setattr(loader, "find_library", lambda _: None)
    monkeypatch.setattr(toolchain, "find_compiler", lambda: ["g++"])
    monkeypatch.setattr(loader, "compile_library", compiled)
    loader.forget_loaded()
    try:
        with heard(told.append):
            assert loader._load(INSTRUCTION_SETS[-1]) is None
    finally:
        loader.forget_loaded()
    (only,) = told
    assert only.rare
    assert "Compiling the native pass for this processor" in only.sentence


def test_what_is_rare_is_logged_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with phase("Loading"), phase("Compiling", rare=True):
        pass
    with heard(lambda _: None), phase("Compiling again", rare=True):
        pass
    assert caplog.messages == ["Compiling ..."]


@pytest.mark.parametrize(("shown", "seen"), [(True, "Compiling ...\n"), (False, "")])
def test_only_what_is_rare_is_said_where_stderr_is_no_terminal(
    shown: bool, seen: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with Activity(shown) as activity:
        with phase("Loading"), phase("Compiling", rare=True):
            pass
        with heard(activity.phase), phase("Loading"):
            pass
    with phase("Compiling", rare=True):
        pass
    assert capsys.readouterr().err == seen
