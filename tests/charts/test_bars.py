"""Bar charts."""

from __future__ import annotations

from xml.etree import ElementTree

from headstart_charts.bars import Bar, BarChart, bars_to_svg
from headstart_charts.page import to_html

CHART = BarChart("Speed-up", "factor", (Bar("one & two", 2.0, 1.5, 2.5), Bar("three", 0.5, 0.5, 0.5)), reference=1.0)
SVG = "{http://www.w3.org/2000/svg}"


def bar_ends(svg: str) -> list[tuple[float, float]]:
    """(left, right) of each bar in pixels."""
    paths = [path.get("d", "") for path in ElementTree.fromstring(svg).iter(f"{SVG}path") if path.get("class") == "bar"]
    return [(float(path[1:].split()[0]), float(path.split("H")[1].split()[0])) for path in paths]


def test_lengths_are_in_proportion_to_values():
    (left, long), (other_left, short) = bar_ends(bars_to_svg(CHART))
    assert left == other_left
    assert abs((long - left) - 4 * (short - left)) < 0.3


def test_labels_are_escaped_and_values_written():
    texts = ["".join(text.itertext()) for text in ElementTree.fromstring(bars_to_svg(CHART)).iter(f"{SVG}text")]
    assert "one & two" in texts
    assert "2.00" in texts
    assert "factor" in texts


def test_no_bar_is_a_chart_too():
    ElementTree.fromstring(bars_to_svg(BarChart("Nothing", "", ())))


def test_a_page_takes_charts():
    page = to_html("Page", [CHART], lead="All is well & good.")
    assert "one &amp; two" in page
    assert "<p>All is well &amp; good.</p>" in page
