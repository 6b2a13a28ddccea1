"""``headstart theory``: the papers' algebra, printed and plotted."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart_charts.page import Table
    from headstart_charts.plots import Figure
    from headstart_lab.theory.formulas import FloatArray

    Exhibit = Table | Figure

MAX_VOCABULARY = 16
"""Longest law that --target-probs takes: some rules are enumerated."""
MAX_LAW_GAMMA = 8
_GAMMA = 5


class Section(StrEnum):
    """What can be shown."""

    FIGURE_2 = "figure2"
    FIGURE_3 = "figure3"
    FIGURE_4 = "figure4"
    TABLE_1 = "table1"
    TABLE_4 = "table4"
    LENIENCE = "lenience"
    ORACLE = "oracle"
    NGRAM = "ngram"
    TREES = "trees"


def theory(
    sections: Annotated[
        list[Section] | None,
        typer.Argument(
            metavar="SECTION",
            help="What to show: figure2, figure3, figure4, table1, table4, lenience, oracle, ngram or trees; all of "
            "them if none is named and no point or law is given.",
        ),
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(min=0, max=1, help="Acceptance rate α of a point of your own.", show_default=False)
    ] = None,
    gamma: Annotated[
        int | None, typer.Option(min=0, max=1024, help="Draft length γ of that point. Left out: 5.", show_default=False)
    ] = None,
    c: Annotated[float, typer.Option("--c", min=0, help="Time of a draft step over that of a target pass.")] = 0.0,
    c_hat: Annotated[float | None, typer.Option(min=0, help="The same ratio for operations. Left out: as --c.")] = None,
    target_probs: Annotated[
        str | None,
        typer.Option(metavar="P1,P2,...", help="A target's distribution, to compare the verification rules on."),
    ] = None,
    draft_probs: Annotated[
        str | None, typer.Option(metavar="Q1,Q2,...", help="The drafter's distribution beside it.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1, max=4, help="Draws per node, for the rules that take several.")] = 2,
    lenience: Annotated[float, typer.Option(min=0, max=1, help="Lenience l of appendix A.5.")] = 0.5,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="A1,A2,...", help="Acceptance of a drafter's first, second, ... guess, for `trees`."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write what is shown to FILE.html (all) or FILE.svg (figures alone).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print values as JSON instead of tables.")] = False,
) -> None:
    """Show the theory of speculative decoding: the papers' figures and tables, or a point of your own.

    Computed values stand beside the printed ones, so that you see where a paper's own print disagrees.

    Examples:

        headstart theory

        headstart theory table4 lenience

        headstart theory --alpha 0.8 --gamma 5 --c 0.05

        headstart theory --target-probs 0.5,0.3,0.2 --draft-probs 0.2,0.3,0.5 --gamma 4

        headstart theory trees --ranks 0.7,0.1,0.05

        headstart theory --alpha 0.8 --c 0.05 --out theory.html
    """
    from headstart_charts.page import Table
    from headstart_lab.commands.exhibits import print_tables
    from headstart_lab.theory import exhibits
    from headstart_lab.theory.formulas import acceptance

    for option, value in (("--alpha", alpha), ("--c", c), ("--c-hat", c_hat)):
        if value is not None and not math.isfinite(value):
            raise ConfigError(f"{option} is {value}; give a finite number.")
    if gamma is not None and alpha is None and target_probs is None:
        raise ConfigError(f"--gamma is {gamma}, of a point that is not given; add --alpha, or two laws.")
    gamma = _GAMMA if gamma is None else gamma
    shown: list[Exhibit] = []
    laws = _laws(target_probs, draft_probs)
    if laws is not None:
        if gamma > MAX_LAW_GAMMA:
            raise ConfigError(f"--gamma is {gamma}; with laws, whose rules are enumerated, at most {MAX_LAW_GAMMA}.")
        shown.append(exhibits.own_laws(*laws, lenience, draws, gamma))
        alpha = min(1.0, float(acceptance(*laws))) if alpha is None else alpha
    if alpha is not None:
        shown.append(exhibits.own_point(alpha, gamma, c, c if c_hat is None else c_hat))
    if not sections and (out is not None or not shown):
        sections = list(Section)
    guesses = exhibits.EXAMPLE_RANKS if ranks is None else _ranks(ranks)
    shown += [_exhibit(section, alpha, gamma, c, guesses) for section in sections or []]

    if as_json:
        print(json.dumps([_as_json(exhibit) for exhibit in shown], ensure_ascii=False, indent=2))
    elif out is None:
        print_tables([exhibit if isinstance(exhibit, Table) else _figure_table(exhibit) for exhibit in shown])
    if out is not None:
        _write(shown, out)


def _exhibit(section: Section, alpha: float | None, gamma: int, c: float, ranks: Sequence[float]) -> Exhibit:
    """A section's figure or table, the reader's own point marked where it has a place."""
    from headstart_lab.theory import exhibits

    match section:
        case Section.FIGURE_2:
            return exhibits.figure_2(None if alpha is None else (alpha, gamma))
        case Section.FIGURE_3:
            return exhibits.figure_3(None if alpha is None else (alpha, c))
        case Section.FIGURE_4:
            return exhibits.figure_4()
        case Section.TABLE_1:
            return exhibits.table_1()
        case Section.TABLE_4:
            return exhibits.table_4()
        case Section.LENIENCE:
            return exhibits.lenience()
        case Section.ORACLE:
            return exhibits.oracle()
        case Section.NGRAM:
            return exhibits.ngram()
        case Section.TREES:
            return exhibits.draft_trees(ranks)


def _laws(target_probs: str | None, draft_probs: str | None) -> tuple[FloatArray, FloatArray] | None:
    if target_probs is None and draft_probs is None:
        return None
    if target_probs is None or draft_probs is None:
        raise ConfigError("--target-probs and --draft-probs come together; give both laws.")
    target, draft = _law("--target-probs", target_probs), _law("--draft-probs", draft_probs)
    if len(target) != len(draft):
        raise ConfigError(
            f"--target-probs has {len(target)} values and --draft-probs {len(draft)}; give as many of each."
        )
    return target, draft


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; give numbers with commas between them, like 0.5,0.3,0.2.") from None


def _law(option: str, text: str) -> FloatArray:
    import numpy as np

    law = _numbers(option, text)
    if len(law) > MAX_VOCABULARY:
        raise ConfigError(f"{option} has {len(law)} values; give at most {MAX_VOCABULARY}.")
    if not all(value >= 0 for value in law) or not math.isclose(sum(law), 1.0, abs_tol=1e-6):
        raise ConfigError(f"{option} is {text!r}; give probabilities that are not negative and sum to 1.")
    return np.array(law) / sum(law)


def _ranks(text: str) -> list[float]:
    ranks = _numbers("--ranks", text)
    if not all(value >= 0 for value in ranks) or sum(ranks) > 1 + 1e-9:
        raise ConfigError(f"--ranks is {text!r}; give probabilities that are not negative and sum to 1 at most.")
    return ranks


def _as_json(exhibit: Exhibit) -> dict[str, Any]:
    from headstart_charts.page import Table

    if isinstance(exhibit, Table):
        rows = [[_finite(cell) for cell in row] for row in exhibit.rows]
        return {"title": exhibit.title, "columns": exhibit.columns, "rows": rows, "note": exhibit.note}
    curves = [
        {"label": curve.label, "x": list(curve.x), "y": [_finite(y) for y in curve.y]} for curve in exhibit.curves
    ]
    return {"title": exhibit.title, "x": exhibit.x_label, "y": exhibit.y_label, "curves": curves, "note": exhibit.note}


def _finite(value: str | int | float | None) -> str | int | float | None:
    """The value, None for infinity: JSON has no word for it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figure_table(figure: Figure) -> Table:
    """A figure for a terminal: each curve at six points, and its shape."""
    from headstart_charts.page import Cell, Table

    xs = figure.curves[0].x
    places = [round(i * (len(xs) - 1) / 5) for i in range(6)]
    top = figure.y_max or max(y for curve in figure.curves for y in curve.y if math.isfinite(y))
    rows: list[tuple[Cell, ...]] = [
        (curve.label, *(curve.y[place] for place in places), _shape(curve.y[::10], top)) for curve in figure.curves
    ]
    columns = (figure.y_label, *(f"{xs[place]:g}" for place in places), "shape")
    return Table(f"{figure.title} against {figure.x_label}", columns, tuple(rows), figure.note, figure.decimals)


def _shape(values: Sequence[float], top: float) -> str:
    levels = "▁▂▃▄▅▆▇█"
    return "".join(levels[round(min(max(value / top, 0.0), 1.0) * (len(levels) - 1))] for value in values)


def _write(exhibits: Sequence[Exhibit], out: Path) -> None:
    from headstart_charts.page import to_html
    from headstart_charts.plots import Figure, stack

    title = "The theory of speculative decoding"
    if out.suffix == ".html":
        text = to_html(title, exhibits)
    elif out.suffix == ".svg":
        figures = [exhibit for exhibit in exhibits if isinstance(exhibit, Figure)]
        if not figures:
            raise ConfigError(f"--out is {out}, but no figure is shown; name one, or write an .html file.")
        text = stack(figures, title)
    else:
        raise ConfigError(f"--out is {out}; its name must end in .html or .svg.")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out is {out}, which cannot be written: {error.strerror}.") from error
    typer.echo(f"Wrote {out}.", err=True)
