"""Tables, and a self-contained HTML page of tables and figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from headstart_charts.bars import BarChart, bars_to_svg
from headstart_charts.plots import STYLE, Figure, to_svg

Cell = str | int | float | None
PROSE = 30
"""Characters of the longest cell that is a name or a figure."""

_PAGE_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d8dee4;--ground:#fff;
--kept:#00714f;--lost:#b3261e;--own:#0067a5}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4af;--line:#30363d;--ground:#14171c;
--kept:#3fd0a4;--lost:#ff9d93;--own:#6cbcf0}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:960px;margin:2rem auto;
padding:0 1rem}
p,figure{max-width:760px}figure{margin:1.5rem 0}svg{max-width:100%;height:auto}.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem;line-height:1.35}
th,td{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line)}th{vertical-align:bottom}
ol.rounds{padding-left:2rem}ol.rounds li{margin:.4rem 0;white-space:pre-wrap;overflow-wrap:anywhere}
.accepted{color:var(--kept)}.rejected{color:var(--lost)}.answer{color:var(--own)}th.left,td.left{text-align:left}th:first-child,td:first-child{padding-left:0}p.note{color:var(--soft)}
"""


@dataclass(frozen=True)
class Table:
    """A table of values; None is shown as a dash."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    decimals: int | tuple[int, ...] = 2
    """Digits of the floats, the same for all columns or one for each."""

    def texts(self) -> list[list[str]]:
        """The rows as they are shown."""
        decimals = (self.decimals,) * len(self.columns) if isinstance(self.decimals, int) else self.decimals
        return [[_text(cell, digits) for cell, digits in zip(row, decimals, strict=True)] for row in self.rows]

    @property
    def left(self) -> list[bool]:
        """[column] whether it is read from the left: names, and prose."""
        columns = zip(*self.texts(), strict=True) if self.rows else [()] * len(self.columns)
        return [
            place == 0 or not title or any(len(text) > PROSE for text in texts)
            for place, (title, texts) in enumerate(zip(self.columns, columns, strict=True))
        ]


@dataclass(frozen=True)
class Drawing:
    """What a module of its own has drawn."""

    title: str
    body: str
    """HTML or SVG, which is put in as it is."""
    note: str = ""


def _text(cell: Cell, digits: int) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.{digits}f}" if math.isfinite(cell) else "∞"
    return str(cell)


def to_html(title: str, exhibits: Sequence[Table | Figure | BarChart | Drawing], lead: str = "") -> str:
    """One page with everything inside: no script, no font, no image from elsewhere. ``lead`` stands at its top."""
    sections = "".join(map(_section, exhibits))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_PAGE_STYLE}{STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{f'<p>{escape(lead)}</p>' if lead else ''}{sections}</body></html>\n"
    )


def _section(item: Table | Figure | BarChart | Drawing) -> str:
    if isinstance(item, Table):
        return _table(item)
    if isinstance(item, Drawing):
        return f'<section><h2>{escape(item.title)}</h2><div class="wide">{item.body}</div>{_note(item.note)}</section>'
    return _figure(item)


def _figure(figure: Figure | BarChart) -> str:
    svg = bars_to_svg(figure, style=False) if isinstance(figure, BarChart) else to_svg(figure, style=False)
    return f"<figure>{svg}{_note(figure.note)}</figure>"


def _table(table: Table) -> str:
    side = [' class="left"' if left else "" for left in table.left]
    head = "".join(f'<th scope="col"{at}>{escape(column)}</th>' for at, column in zip(side, table.columns, strict=True))
    rows = ([f"<td{at}>{escape(cell)}</td>" for at, cell in zip(side, row, strict=True)] for row in table.texts())
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{_note(table.note)}</section>"
    )


def _note(note: str) -> str:
    return f'<p class="note">{escape(note)}</p>' if note else ""
