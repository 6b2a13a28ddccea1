"""Tables on terminals and in pipes."""

from __future__ import annotations

import pytest

from headstart.analysis.page import Table
from headstart.cli.exhibits import print_tables


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, and no styles."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)


def shown(capsys: pytest.CaptureFixture[str], table: Table) -> list[list[str]]:
    """The words of each line below the title."""
    print_tables([table])
    return [line.split() for line in capsys.readouterr().out.splitlines()[1:] if line]


FIGURES = Table("Figures", ("setting", *("some figure",) * 40), (("one, two", *(1.25,) * 40),))


@pytest.mark.usefixtures("narrow")
def test_figures_stay_in_one_line_on_a_terminal_that_is_too_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, FIGURES) == [["some"] * 40, ["setting", *["figure"] * 40], ["one,", "two", *["1.25"] * 40]]


def test_figures_stay_in_one_line_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    assert shown(capsys, FIGURES)[-1] == ["one,", "two", *["1.25"] * 40]


@pytest.mark.usefixtures("narrow")
def test_long_texts_fold_between_words_beside_whole_figures(capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"word{number}" for number in range(10, 30)]
    first, *rest = shown(capsys, Table("Why", ("", "seconds"), ((" ".join(words), 12.5),)))[1:]
    assert first[-1] == "12.50"
    assert [*first[:-1], *(word for line in rest for word in line)] == words
