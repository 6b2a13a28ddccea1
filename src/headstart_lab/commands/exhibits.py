"""Tables on a terminal, and reports in files, for the commands that measure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from headstart.cli.json_output import print_json
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart_charts.bars import BarChart
    from headstart_charts.page import Drawing, Table
    from headstart_charts.plots import Figure
    from headstart_lab.bench.prompts import BenchPrompt
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin

    Exhibit = Table | Figure | BarChart | Drawing


FILE_WIDTH = 160
"""Characters in a line of a file or pipe, which have no width of their own."""
_GAP = 2
"""Characters between two columns."""


def show(exhibits: Sequence[Exhibit], record: Mapping[str, Any]) -> None:
    """The tables among the exhibits, the most important last, where it stays in sight; before it where the figures come
    from, in a line, and what disturbed them, in another."""
    from headstart_charts.page import Table
    from headstart_lab.provenance import origin_line

    tables = [each for each in exhibits if isinstance(each, Table) and each.rows]
    print_tables(tables[:0:-1])
    for line in (origin_line(record), record.get("provenance", {}).get("machine", {}).get("sentence")):
        if line:
            print(f"{line}\n")
    print_tables(tables[:1])


def print_tables(exhibits: Sequence[Exhibit]) -> None:
    """The tables among the exhibits; figures are for the HTML page."""
    from rich.console import Console
    from rich.table import Table as RichTable

    from headstart_charts.page import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for table in exhibits:
        if not isinstance(table, Table) or not table.rows:
            continue
        shown = RichTable(box=None, pad_edge=False)
        widths = _column_widths(table, console.width)
        for column, width, left in zip(table.columns, widths, table.left, strict=True):
            justify: Literal["left", "right"] = "left" if left else "right"
            shown.add_column(column, justify=justify, overflow="fold", width=width)
        for row in table.texts():
            shown.add_row(*row)
        console.print(table.title, style="bold", soft_wrap=True)
        # Wider than the terminal if need be: it breaks lines, or a pager scrolls them.
        width = max(console.width, sum(widths) + _GAP * len(widths))
        Console(highlight=False, markup=False, width=width, height=console.height).print(shown)
        if table.note:
            console.print(table.note, style="dim")
        console.print()


def _column_widths(table: Table, room: int) -> list[int]:
    """Characters of each column, as many together as there is ``room`` for, or more.

    Titles fold between words, and so do long cells; figures and short texts stay in one line.
    """
    from rich.cells import cell_len

    from headstart_charts.page import PROSE

    widths, least = [], []
    for title, *cells in zip(table.columns, *table.texts(), strict=True):
        longest = max(map(cell_len, cells))
        widths.append(max(cell_len(title), longest))
        least.append(max(min(longest, PROSE), *map(cell_len, title.split() or [""])))
    for _ in range(sum(widths) + _GAP * (len(widths) - 1) - room):
        # The widest of those that can still give.
        place = max(range(len(widths)), key=lambda place: (widths[place] > least[place], widths[place]))
        widths[place] = max(widths[place] - 1, least[place])
    return widths


def write_report(
    directory: Path,
    name: str,
    result: Mapping[str, Any],
    title: str,
    exhibits: Sequence[Exhibit],
    record: Mapping[str, Any],
    lead: str = "",
) -> None:
    """``name``.json and ``name``.html in a directory, which is made if need be; ``record`` ends the page.

    Raises:
        ConfigError: they cannot be written.
    """
    from headstart_charts.origin import origin_table
    from headstart_charts.page import to_html

    texts = {
        f"{name}.json": json.dumps(result, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
        f"{name}.html": to_html(title, [*exhibits, origin_table(record)], lead),
    }
    for file, text in texts.items():
        _write(directory / file, text)
    typer.echo(f"Wrote {' and '.join(str(directory / file) for file in texts)}.", err=True)


def write_text(path: Path, text: str) -> None:
    """One more file beside a report.

    Raises:
        ConfigError: it cannot be written.
    """
    _write(path, text)
    typer.echo(f"Wrote {path}.", err=True)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out is {path.parent}, which cannot be written: {error.strerror}.") from error


def measurement_record(
    where: Origin,
    model: Mapping[str, Any],
    prompts: Path | None,
    chosen: Sequence[BenchPrompt],
    extent: Interruption,
    **settings: Any,
) -> dict[str, Any]:
    """What every report of a measurement begins with: where, with which model, on which prompts, how, and how much.

    ``model``: as ``model_record`` says.
    """
    return {
        "provenance": where.finished(),
        "model": dict(model),
        "settings": {
            "prompts": "package" if prompts is None else prompts.name,
            "prompt_ids": [prompt.id for prompt in chosen],
            **settings,
        },
        **extent.record(),
    }


def hand_out(
    result: Mapping[str, Any],
    exhibits: Sequence[Exhibit],
    record: Mapping[str, Any],
    as_json: bool,
    out: Path | None,
    name: str,
    title: str,
    lead: str = "",
) -> None:
    """On stdout, as JSON or tables, and in a directory where one is named; ``record``: where the figures come from;
    ``lead`` stands at the page's top.

    Raises:
        ConfigError: files cannot be written.
    """
    if as_json:
        print_json(result)
    else:
        show(exhibits, record)
    if out is not None:
        write_report(out, name, result, title, exhibits, record, lead)
