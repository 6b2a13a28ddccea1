"""Tables on terminals and in pipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headstart_charts.page import Table
from headstart_charts.plots import Curve, Figure
from headstart_lab.commands.exhibits import print_tables, show, write_report


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


RECORD = {
    "provenance": {
        "date": "2026-11-25",
        "versions": {"headstart": "0.1.0", "torch": "2"},
        "cpu": "a processor",
        "cores": 2,
        "load_average": [0.5, 0.5, 0.5],
        "load_average_after": [3.25, 1.0, 1.0],
        "machine": {"sentence": "Other programs used 1.3 of 2 cores during the measurement."},
    },
    "model": {"name": "a model", "backend": "native-int4"},
    "settings": {"prompt_ids": list(range(100))},
}


def test_the_table_that_matters_comes_last_and_where_figures_come_from_in_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = Table("First", ("x",), (("most",),)), Table("Second", ("x",), (("less",),))
    show([first, Figure("A figure", "x", "y", (Curve("c", [1.0], [1.0]),)), second, Table("None", ("x",), ())], RECORD)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines == [
        "Second",
        "x",
        "less",
        "a model in native-int4, 2 cores of a processor, headstart 0.1.0, load average 0.5 to 3.2, 2026-11-25",
        "Other programs used 1.3 of 2 cores during the measurement.",
        "First",
        "x",
        "most",
    ]


def test_a_page_has_all_of_it(tmp_path: Path) -> None:
    write_report(tmp_path, "x", {"a": 1}, "Title", [FIGURES], RECORD)
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    page = (tmp_path / "x.html").read_text()
    assert page.index("some figure") < page.index("Where these figures come from") < page.index("prompt ids")
