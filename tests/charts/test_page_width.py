"""The pages of measurements in a headless Chromium: nothing of a table is out of sight."""

from __future__ import annotations

import os
import shutil

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")

from playwright.sync_api import sync_playwright

from headstart_charts.page import to_html
from headstart_lab.bench.drafters_report import overview
from headstart_lab.bench.run import BenchRuns
from headstart_lab.bench.summary import Breakdown, Speed, Spread, Summary

CHROMIUM = os.environ.get("HEADSTART_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found (Debian: apt-get install chromium)")


def summary(name: str) -> Summary:
    figures = Spread(1234.56, 1200.04, 1299.95)
    return Summary(
        name=name,
        groups={"translation": Speed(figures, figures, Spread(12.34, 10.05, 15.06))},
        mean=Speed(figures, figures, Spread(12.34, 10.05, 15.06)),
        turn_quartiles=(10.05, 12.0, 15.05),
        mean_accepted_length=12.34,
        acceptance_rate=1.0,
        acceptance_by_position=[1.0],
        breakdown=Breakdown(1.0, 1.0, 1.0, 1.0),
        pass_ratio=1.0,
        compared=1234,
        differing=1234,
        largest_gap=None,
        forecast=None,
    )


@pytest.mark.thorough
def test_every_column_of_the_widest_table_is_in_sight() -> None:
    page_of = to_html(
        "Benchmark", [overview(BenchRuns(), [summary("none"), summary("eagle3:min_probability=0:tree_nodes=31")])]
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1000, "height": 700})
        page.set_content(page_of)
        hidden = page.evaluate(
            "[...document.querySelectorAll('.wide')].map(each => each.scrollWidth - each.clientWidth)"
        )
        browser.close()
    assert hidden == [0]
