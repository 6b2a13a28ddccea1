"""SVG plots: valid, self-contained, true to their values, legible."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from headstart_charts import plots
from headstart_charts.plots import Curve, Figure, Mark

SVG = "{http://www.w3.org/2000/svg}"


def figure(*curves: Curve, **options: object) -> Figure:
    return Figure("A <title> & more", "x", "y", curves, **options)  # type: ignore[arg-type]


def curve_paths(svg: str) -> list[ElementTree.Element]:
    """The curves inside the plotting area, without the legend's samples."""
    inner = ElementTree.fromstring(svg).find(f".//{SVG}svg")
    assert inner is not None
    return inner.findall(f"{SVG}path")


def vertices(path: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.attrib["d"])]


def test_points_lie_where_the_axes_say() -> None:
    svg = plots.to_svg(figure(Curve("up", [0, 5, 10], [0, 2, 4])))
    (low, middle, high) = vertices(curve_paths(svg)[0])
    assert low[0] < middle[0] < high[0]
    assert low[1] > middle[1] > high[1]  # pixels grow downwards
    assert middle == pytest.approx(((low[0] + high[0]) / 2, (low[1] + high[1]) / 2))
    labels = {text.text: text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert float(labels["10"].attrib["x"]) == pytest.approx(high[0])
    assert float(labels["4"].attrib["y"]) == pytest.approx(high[1] + 4)


def test_each_curve_is_drawn_and_named() -> None:
    svg = plots.to_svg(figure(Curve("one", [0, 1], [0, 1]), Curve("two", [0, 1], [1, 0], dashed=True)))
    paths = curve_paths(svg)
    assert [path.findtext(f"{SVG}title") for path in paths] == ["one", "two"]
    assert "dashed" not in paths[0].attrib["class"]
    assert "dashed" in paths[1].attrib["class"]
    assert {"one", "two"} <= {text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")}


def test_a_curve_breaks_where_it_is_not_finite() -> None:
    svg = plots.to_svg(figure(Curve("gap", [0, 1, 2, 3, 4], [1, 2, math.inf, math.nan, 1])))
    path = curve_paths(svg)[0].attrib["d"]
    assert path.count("M") == 2
    assert len(vertices(curve_paths(svg)[0])) == 3
    assert "inf" not in svg
    assert "nan" not in svg


def test_curves_are_cut_at_the_top_and_marks_outside_left_out() -> None:
    inside, outside = Mark("here", 1, 2), Mark("beyond", 1, 9)
    svg = plots.to_svg(figure(Curve("steep", [0, 1, 2], [0, 3, 90]), marks=(inside, outside), y_max=4.0))
    clip = ElementTree.fromstring(svg).find(f".//{SVG}svg")
    assert clip is not None
    top = float(clip.attrib["y"])
    assert vertices(curve_paths(svg)[0])[2][1] < top  # drawn beyond the clipping rectangle
    assert "here" in svg
    assert "beyond" not in svg


def test_labels_are_escaped_and_nothing_comes_from_outside() -> None:
    svg = plots.to_svg(figure(Curve('<script>"&', [0, 1], [0, 1])))
    assert "<script>" not in svg
    assert ElementTree.fromstring(svg).findtext(f"{SVG}title") == "A <title> & more"
    assert re.findall(r"https?://[^\"']*", svg) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in svg


def test_degenerate_figures_are_still_figures() -> None:
    for empty in (figure(), figure(Curve("flat", [0, 1], [0, 0])), figure(Curve("none", [], []))):
        ElementTree.fromstring(plots.to_svg(empty))


def test_stack_holds_every_figure_and_the_style_once() -> None:
    svg = plots.stack([figure(Curve("a", [0, 1], [0, 1])), figure(Curve("b", [0, 1], [0, 1]))], "two")
    root = ElementTree.fromstring(svg)
    assert float(root.attrib["height"]) == 2 * plots.HEIGHT
    assert len(root.findall(f".//{SVG}style")) == 1
    assert len(root.findall(f"{SVG}g")) == 2


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 11), (0, 40), (-3, 7), (0, 0.003), (0, 123456)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    values = plots.ticks(low, high)
    assert 3 <= len(values) <= 8
    assert low <= values[0] <= values[-1] <= high
    steps = [after - before for before, after in pairwise(values)]
    assert max(steps) == pytest.approx(min(steps))
    mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
    assert any(mantissa == pytest.approx(factor) for factor in (1, 2, 5))


def luminance(color: str) -> float:
    """Relative luminance by WCAG 2."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_colours_stand_out_from_their_ground(dark: bool) -> None:
    light_style, dark_style = plots.STYLE.split("@media(prefers-color-scheme:dark)")
    colors = dict(re.findall(r"--(\w+):(#[0-9a-f]+)", dark_style if dark else light_style))
    ground = "#ffffff" if colors["ground"] == "#fff" else colors["ground"]
    for name in ("ink", "soft", *(f"c{i}" for i in range(6))):
        low, high = sorted((luminance(colors[name]), luminance(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name
