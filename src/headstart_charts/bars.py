"""Bar charts as self-contained SVG, in the style of ``plots``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from headstart_charts.plots import WIDTH, ticks, wrap_svg

_LEFT, _TOP, _BAR, _GAP, _RIGHT = 190, 44, 18, 8, 60


@dataclass(frozen=True)
class Bar:
    """One value and its range."""

    label: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars from 0, with whiskers and a reference line."""

    title: str
    x_label: str
    bars: tuple[Bar, ...]
    reference: float | None = None
    """Where the reference line is drawn."""
    note: str = ""
    decimals: int = 2


def bars_to_svg(chart: BarChart, style: bool = True) -> str:
    """Render a chart as one ``<svg>`` element; ``style`` as in ``plots.to_svg``."""
    bottom = _TOP + len(chart.bars) * (_BAR + _GAP)
    top_value = max([bar.high for bar in chart.bars] + [chart.reference or 0.0]) or 1.0
    scale = (WIDTH - _LEFT - _RIGHT) / top_value

    def x(value: float) -> str:
        return f"{_LEFT + scale * value:.1f}"

    parts = [f'<text class="title" x="16" y="26">{escape(chart.title)}</text>']
    for value in ticks(0.0, top_value):
        parts.append(f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="soft" x="{x(value)}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    parts += [_bar(bar, _TOP + place * (_BAR + _GAP), x, chart.decimals) for place, bar in enumerate(chart.bars)]
    if chart.reference is not None:
        at = x(chart.reference)
        parts.append(f'<path class="curve s1 dashed" d="M{at} {_TOP} V{bottom}"/>')
    middle = _LEFT + (WIDTH - _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{bottom + 36}" text-anchor="middle">{escape(chart.x_label)}</text>')
    return wrap_svg("".join(parts), bottom + 48, chart.title, style)


def _bar(bar: Bar, top: float, x: Callable[[float], str], decimals: int) -> str:
    middle = top + _BAR / 2
    label, value = escape(bar.label), f"{bar.value:.{decimals}f}"
    return (
        f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">{label}</text>'
        f'<path class="bar" d="M{_LEFT} {top} H{x(bar.value)} v{_BAR} H{_LEFT} Z">'
        f"<title>{label}: {value} ({bar.low:.{decimals}f} to {bar.high:.{decimals}f})</title></path>"
        f'<path class="whisker" d="M{x(bar.low)} {middle} H{x(bar.high)} M{x(bar.low)} {middle - 4} v8 '
        f'M{x(bar.high)} {middle - 4} v8"/>'
        f'<text x="{float(x(max(bar.value, bar.high))) + 6:.1f}" y="{middle + 4}">{value}</text>'
    )
