"""Tables and the HTML page."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

from headstart_charts.page import Table, to_html
from headstart_charts.plots import Curve, Figure


class Reader(HTMLParser):
    """Collects cells and checks that elements are closed in order."""

    VOID = frozenset({"meta", "rect", "line", "circle", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"td", "th"}:
            self.cells.append(data)


TABLE = Table("T & t", ("name", "value"), (("a<b", 1.2345), ("n", 3), ("none", None), ("all", math.inf)), "a note")


def test_cells_as_text() -> None:
    assert TABLE.texts() == [["a<b", "1.23"], ["n", "3"], ["none", "–"], ["all", "∞"]]
    by_column = Table("t", ("a", "b"), ((0.5, 0.25),), decimals=(1, 3))
    assert by_column.texts() == [["0.5", "0.250"]]


def test_page_is_whole_and_self_contained() -> None:
    figure = Figure("F", "x", "y", (Curve("c", [0, 1], [0, 1]),), note="why")
    page = to_html("Title <1>", [TABLE, figure])
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert reader.cells == ["name", "value", "a<b", "1.23", "n", "3", "none", "–", "all", "∞"]
    assert "Title &lt;1&gt;" in page
    assert "a note" in page
    assert "why" in page
    assert page.count("--grid:") == 2  # the plots' style, light and dark, once for the page
    assert set(re.findall(r"https?://[^\"'<]*", page)) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in page


def test_prose_is_read_from_the_left_and_figures_from_the_right() -> None:
    table = Table("t", ("name", "figure", "why", ""), (("a", 1.5, "what it knows does not occur in these texts", "x"),))
    assert table.left == [True, False, True, True]
    assert Table("t", ("name", "figure"), ()).left == [True, False]
    page = to_html("x", [table])
    assert '<td class="left">what it knows' in page
    assert "<td>1.50</td>" in page
