"""Engines over a tiny model, and a browser, for the tests of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lab_browser import CHROMIUM, NO_CHROMIUM, PATIENCE, QUIET, REFUSED, OpenPage, Run
from tiny_checkpoint import write_tiny_model

from headstart import LLM
from headstart.loading.model import Model, load_model
from headstart_lab.page.static_page import static_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """One whose rows have the same bits in every pass: numbers may be compared whoever rode in the same passes."""
    found = load_model(write_tiny_model(tmp_path_factory.mktemp("exact"), head_dim=32), "fp32")
    if not found.backend.exact_rows:
        pytest.skip("needs the native path")
    return found


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", more_drafters=["ngram", "random"], prefix_caching=True, tolerant=True)


@pytest.fixture(scope="session")
def slow_model(torch_model_dir: Path) -> Model:
    """What it writes takes long enough to be left in the middle."""
    return load_model(torch_model_dir, "fp32")


@pytest.fixture
def slow_llm(slow_model: Model) -> LLM:
    return LLM(slow_model, "suffix", more_drafters=["ngram", "random"], prefix_caching=True, tolerant=True)


@pytest.fixture
def plain(model: Model) -> LLM:
    return LLM(model, "none")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A headless browser; tests that need it are skipped, with the reason, where there is none.

    A module's own: while Playwright runs, other modules' tests could not run an event loop in this thread.
    """
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")
    if CHROMIUM is None:
        pytest.skip(NO_CHROMIUM)
    api.expect.set_options(timeout=PATIENCE)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[f"--{flag}" for flag in QUIET.split()])
        yield browser
        browser.close()


@pytest.fixture
def open_address(chromium: Browser) -> Iterator[OpenPage]:
    """Opens an address; in the end nothing may have gone wrong in the page, and nothing may have gone elsewhere."""
    contexts: list[Any] = []
    complaints: list[str] = []
    asked: list[str] = []

    def open_(address: str, script: str = "", **options: Any) -> Page:
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script(script)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [line for line in complaints if not line.startswith(REFUSED)] == []
    assert asked
    assert [url for url in asked if not re.match(r"http://127\.0\.0\.1:\d+/|file:///", url)] == []


@pytest.fixture
def play(open_address: OpenPage, tmp_path: Path) -> OpenPage:
    """Opens the exported page with given runs, straight from its folder."""

    def open_(*runs: Run, **options: Any) -> Page:
        for file, text in static_page(runs).items():
            (tmp_path / file).write_text(text, encoding="utf-8")
        page = open_address((tmp_path / "index.html").as_uri(), **options)
        page.locator("#player").wait_for()
        return page

    return open_
