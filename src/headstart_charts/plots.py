"""Line plots as self-contained SVG: no dependency, no script, no outside request, legible in light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 400
"""Size of a figure in pixels."""
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 64, 44, 500, 296
_LEGEND_LEFT, _LEGEND_STEP = _LEFT + _PLOT_WIDTH + 16, 20

# Six hues apart in lightness too; each has at least 4.5:1 contrast with its ground (white, and #14171c).
_LIGHT = ("#0067a5", "#b84300", "#00714f", "#9c3f78", "#735600", "#4b4b9e")
_DARK = ("#6cbcf0", "#ff9b57", "#3fd0a4", "#ee9fcb", "#e0b84a", "#b3b3ff")

STYLE = (
    ".hs-plot{--ink:#1b1f24;--soft:#57606a;--grid:#d8dee4;--ground:#fff;"
    + "".join(f"--c{i}:{color};" for i, color in enumerate(_LIGHT))
    + "font:13px system-ui,sans-serif}"
    + "@media(prefers-color-scheme:dark){.hs-plot{--ink:#e6edf3;--soft:#9aa4af;--grid:#30363d;--ground:#14171c;"
    + "".join(f"--c{i}:{color};" for i, color in enumerate(_DARK))
    + "}}"
    + ".hs-plot text{fill:var(--ink)}.hs-plot .soft{fill:var(--soft)}.hs-plot .title{font-weight:600;font-size:15px}"
    + ".hs-plot .grid{stroke:var(--grid)}.hs-plot .ground{fill:var(--ground)}"
    + ".hs-plot .curve{fill:none;stroke-width:2;stroke-linejoin:round}.hs-plot .dashed{stroke-dasharray:6 4}"
    + ".hs-plot .mark{fill:var(--ink);stroke:var(--ground);stroke-width:2}"
    + ".hs-plot .bar{fill:var(--c0)}.hs-plot .whisker{stroke:var(--ink);stroke-width:1.5}"
    + ".hs-plot .halo{stroke:var(--ground);stroke-width:4px}"
    + "".join(f".hs-plot .s{i}{{stroke:var(--c{i})}}" for i in range(len(_LIGHT)))
)
"""The style sheet that every figure needs once in its document."""


@dataclass(frozen=True)
class Curve:
    """One line through (x[i], y[i]); it breaks where a value is not finite."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    color: int | None = None
    """Index of the hue, for curves that belong together; None: the curve's place in the figure."""


@dataclass(frozen=True)
class Mark:
    """One labelled point."""

    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Figure:
    """A line plot. Axes start at 0 unless values are negative; curves are cut off at ``y_max``."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    y_max: float | None = None
    """Top of the y axis; None: the largest value."""
    note: str = ""
    decimals: int = 2
    """Digits of its values where they are written as numbers."""


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) inside [low, high], about ``count`` of them."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


@dataclass(frozen=True)
class _Axis:
    """Maps values of [low, high] to pixels."""

    low: float
    high: float
    start: float
    length: float

    @classmethod
    def over(cls, values: Sequence[float], high: float | None, start: float, length: float) -> _Axis:
        finite = [value for value in values if math.isfinite(value)]
        low = min(0.0, *finite) if finite else 0.0
        top = high if high is not None else max(finite, default=1.0)
        return cls(low, top if top > low else low + 1.0, start, length)

    def pixel(self, value: float) -> float:
        return self.start + self.length * (value - self.low) / (self.high - self.low)

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def to_svg(figure: Figure, style: bool = True) -> str:
    """Render a figure as one ``<svg>`` element.

    Args:
        style: whether to carry ``STYLE`` inside; a document that holds several figures may hold it once instead.
    """
    return wrap_svg(_draw(figure), HEIGHT, figure.title, style)


def stack(figures: Sequence[Figure], title: str) -> str:
    """Render several figures below each other as one ``<svg>`` document."""
    parts = [f'<g transform="translate(0 {i * HEIGHT})">{_draw(figure)}</g>' for i, figure in enumerate(figures)]
    return wrap_svg("".join(parts), HEIGHT * len(figures), title, style=True)


def wrap_svg(body: str, height: int, title: str, style: bool) -> str:
    """An ``<svg>`` document of the figures' width around its elements."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hs-plot" role="img" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" aria-label="{escape(title)}"><title>{escape(title)}</title>'
        f"{f'<style>{STYLE}</style>' if style else ''}"
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>{body}</svg>'
    )


def _draw(figure: Figure) -> str:
    xs = [x for curve in figure.curves for x in curve.x] + [mark.x for mark in figure.marks]
    ys = [y for curve in figure.curves for y in curve.y] + [mark.y for mark in figure.marks]
    x_axis = _Axis.over(xs, None, _LEFT, _PLOT_WIDTH)
    y_axis = _Axis.over(ys, figure.y_max, _TOP + _PLOT_HEIGHT, -_PLOT_HEIGHT)
    parts = [_frame(figure, x_axis, y_axis)]
    # A nested <svg> clips what leaves the plotting area, without an id that two figures could share.
    parts.append(
        f'<svg x="{_LEFT}" y="{_TOP}" width="{_PLOT_WIDTH}" height="{_PLOT_HEIGHT}" '
        f'viewBox="{_LEFT} {_TOP} {_PLOT_WIDTH} {_PLOT_HEIGHT}">'
    )
    parts += [_curve(curve, _hue(curve, i), x_axis, y_axis) for i, curve in enumerate(figure.curves)]
    parts.append("</svg>")
    parts += [_legend_entry(curve, _hue(curve, i), i) for i, curve in enumerate(figure.curves)]
    parts += [_mark(mark, x_axis, y_axis) for mark in figure.marks if x_axis.holds(mark.x) and y_axis.holds(mark.y)]
    return "".join(parts)


def _hue(curve: Curve, place: int) -> int:
    return (place if curve.color is None else curve.color) % len(_LIGHT)


def _frame(figure: Figure, x_axis: _Axis, y_axis: _Axis) -> str:
    bottom, right = _TOP + _PLOT_HEIGHT, _LEFT + _PLOT_WIDTH
    parts = [f'<text class="title" x="{_LEFT}" y="26">{escape(figure.title)}</text>']
    for value in ticks(x_axis.low, x_axis.high):
        x = f"{x_axis.pixel(value):.1f}"
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{x}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    for value in ticks(y_axis.low, y_axis.high):
        y = y_axis.pixel(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="soft" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle_x, middle_y = _LEFT + _PLOT_WIDTH / 2, _TOP + _PLOT_HEIGHT / 2
    parts.append(f'<text x="{middle_x}" y="{bottom + 40}" text-anchor="middle">{escape(figure.x_label)}</text>')
    parts.append(
        f'<text x="18" y="{middle_y}" text-anchor="middle" transform="rotate(-90 18 {middle_y})">'
        f"{escape(figure.y_label)}</text>"
    )
    return "".join(parts)


def _curve(curve: Curve, hue: int, x_axis: _Axis, y_axis: _Axis) -> str:
    path, pen = [], "M"
    for x, y in zip(curve.x, curve.y, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            pen = "M"
            continue
        path.append(f"{pen}{x_axis.pixel(x):.1f} {y_axis.pixel(y):.1f}")
        pen = "L"
    dashed = " dashed" if curve.dashed else ""
    return f'<path class="curve s{hue}{dashed}" d="{" ".join(path)}"><title>{escape(curve.label)}</title></path>'


def _legend_entry(curve: Curve, hue: int, place: int) -> str:
    y = _TOP + 10 + place * _LEGEND_STEP
    dashed = " dashed" if curve.dashed else ""
    return (
        f'<path class="curve s{hue}{dashed}" d="M{_LEGEND_LEFT} {y} h22"/>'
        f'<text x="{_LEGEND_LEFT + 28}" y="{y + 4}">{escape(curve.label)}</text>'
    )


def _mark(mark: Mark, x_axis: _Axis, y_axis: _Axis) -> str:
    x, y = x_axis.pixel(mark.x), y_axis.pixel(mark.y)
    # Below the point, where rising curves leave room; left of it near the right edge.
    anchor, shift = ("end", -8) if x > _LEFT + _PLOT_WIDTH * 0.8 else ("start", 8)
    place = f'x="{x + shift:.1f}" y="{y + 20:.1f}" text-anchor="{anchor}"'
    label = escape(mark.label)
    return (
        f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
        f'<text class="halo" aria-hidden="true" {place}>{label}</text><text {place}>{label}</text>'
    )
