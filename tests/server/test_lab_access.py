"""Deque's axe finds nothing to complain about on the lab page, in any of its states, themes and widths."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")
pytest.importorskip("axe_playwright_python", reason="needs axe-playwright-python (the extra 'dev')")

from lab_browser import OpenPage, made_round, made_run, ready, serving
from playwright.sync_api import Page, expect

from headstart import LLM
from headstart.loading.model import load_model
from headstart_server.settings import ServerSettings

FAST = made_round((" two", " three"), " four", wrong=(" five",))
SLOW = made_round((" six",), " seven", wrong=(" eight",), times=(0.1, 1.6, 0.1))
CODE = made_round(("```\n", "x = 1", "\n```"), "\n")
SURROUNDINGS = [(scheme, width) for scheme in ("light", "dark") for width in (1280, 390)]


def complaints(page: Page) -> list[str]:
    """The rules that the page breaks, each with its first element."""
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    # Without preload: axe would ask for the style sheets again, which file: addresses refuse.
    found: list[str] = page.evaluate(
        """async () => (await axe.run({ preload: false })).violations.map(
          (rule) => `${rule.id}: ${rule.nodes[0].html}`
        )"""
    )
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(("scheme", "width"), SURROUNDINGS)
def test_the_player_is_accessible(play: OpenPage, scheme: str, width: int) -> None:
    runs = [made_run([FAST, CODE], title="Fast"), made_run([SLOW], others=0.5, title="Slow")]
    page = play(
        *runs, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True, viewport={"width": width, "height": 800}
    )
    assert complaints(page) == []
    page.click("#view-rounds")
    for _ in range(2):
        page.click("#step-back")
        assert complaints(page) == []
    page.locator("#recorded button", has_text="Slow").click()
    assert complaints(page) == []
    page.click("#view-rounds")
    assert complaints(page) == []
    page.click("#how summary")
    page.click("#more-words summary")
    assert complaints(page) == []


@pytest.fixture(scope="module")
def address(tiny_model_dir: Path) -> Iterator[str]:
    llm = LLM(load_model(tiny_model_dir, "fp32"), "suffix", tolerant=True)
    with serving(llm, ServerSettings("tiny")) as base:
        yield base


@pytest.mark.thorough
@pytest.mark.parametrize(("scheme", "width"), SURROUNDINGS)
def test_the_served_page_is_accessible(open_address: OpenPage, address: str, scheme: str, width: int) -> None:
    options = {"reduced_motion": "reduce", "bypass_csp": True, "viewport": {"width": width, "height": 800}}
    page = ready(open_address(address, color_scheme=scheme, **options))
    assert complaints(page) == []
    page.click("#settings summary")
    page.fill("#max-tokens", "12")
    page.fill("#prompt", "abc abc")
    page.click("#send")
    expect(page.locator("#status")).to_contain_text("Done")
    assert complaints(page) == []
    page.click("#tab-calculator")
    page.locator("#outcome dd").first.wait_for()
    assert complaints(page) == []
    page.click("#tab-rules")
    page.locator("[data-rule='exact']").wait_for()
    assert complaints(page) == []
    page.click("#tab-watch")
    page.evaluate("() => { window.fetch = async () => { throw new TypeError('Failed to fetch'); }; }")
    page.fill("#prompt", "abc")
    page.click("#send")
    expect(page.locator("#status.wrong")).to_be_visible()
    assert complaints(page) == []
