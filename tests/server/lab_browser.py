"""What the tests of the lab page share: a browser's settings, a server on a thread, and made-up runs."""

from __future__ import annotations

import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from serving import assert_empty

from headstart import LLM
from headstart_server.settings import ServerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

CHROMIUM = os.environ.get("HEADSTART_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
NO_CHROMIUM = "no Chromium found (Debian: apt-get install chromium)"
QUIET = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
QUIET += " disable-component-update disable-sync"
MESSAGE = "abc abc abc"
REFUSED = "Failed to load resource: the server responded with a status of 40"
"""How Chromium notes a request that was refused on purpose."""
PHONE = {"width": 360, "height": 740}
PATIENCE = 30_000
"""Milliseconds; other tests may keep the machine busy."""
HELD = """
  window.held = []; window.now = 0;
  window.requestAnimationFrame = (draw) => held.push(draw);
  performance.now = () => window.now;
"""
"""Time that passes only where a test lets it (``pass_time``)."""

OpenPage = Callable[..., "Page"]
Run = dict[str, Any]


def pass_time(page: Page, milliseconds: int, frame: int = 20) -> None:
    """Let a page with ``HELD`` draw its frames."""
    page.evaluate(
        """([milliseconds, frame]) => {
          for (let passed = 0; passed < milliseconds; passed += frame) {
            window.now += frame;
            held.splice(0).forEach((draw) => draw(window.now));
          }
        }""",
        [milliseconds, frame],
    )


@contextmanager
def serving(llm: LLM, settings: ServerSettings) -> Iterator[str]:
    """The address of a server on a thread of this process."""
    import uvicorn

    from headstart_server.app import create_app

    server = uvicorn.Server(uvicorn.Config(create_app(llm, settings), port=0, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        (address,) = [socket.getsockname() for each in server.servers for socket in each.sockets]
        yield f"http://127.0.0.1:{address[1]}"
    finally:
        server.should_exit = True
        thread.join()
    assert_empty(llm)


def ready(page: Page) -> Page:
    """The page when its server has answered."""
    page.locator("#send:enabled").wait_for()
    return page


def words(answer: Locator) -> str:
    """The text of an answer, as far as it has been said, without the names of tokens that have none."""
    return "".join(answer.locator(".token:not(.coming, .mute)").all_text_contents())


def value(page: Page, term: str, box: str) -> str:
    """What stands beside a term of a description list."""
    entry = page.locator(f"{box} div", has=page.locator("dt", has_text=re.compile(f"^{term}$")))
    return entry.locator("dd").inner_text()


def guess(label: str, parent: int, target: float = 0.5) -> dict[str, Any]:
    """A node of a made-up tree."""
    return {"label": label, "parent": parent, "target": target, "law": target, "draft": None}


def made_round(
    path: Sequence[str], own: str, wrong: Sequence[str] = (), times: tuple[float, float, float] = (0.1, 0.3, 0.1)
) -> dict[str, Any]:
    """A round that kept ``path`` and added ``own``; ``wrong`` guesses stood beside it. ``times``: draft, pass, rest."""
    chain = [guess(label, place - 1) for place, label in enumerate(path)]
    beside = [guess(label, len(path) - 1, 0.1) for label in wrong]
    origin = "corrected" if wrong else "bonus" if path else "plain"
    texts = [(label, "accepted") for label in path] + [(own, origin)]
    tokens = [{"text": text, "part": False, "label": text, "origin": kind, "rejected": None} for text, kind in texts]
    return {
        "event": "round",
        "tokens": tokens,
        "root": "·",
        "nodes": chain + beside,
        "path": list(range(len(path))),
        "answer": guess(own, len(path) - 1, 0.9),
        "seconds": sum(times),
        "draft_seconds": times[0],
        "pass_seconds": times[1],
    }


def made_run(
    rounds: Sequence[dict[str, Any]], plain_pass: float = 0.4, others: float = 0.0, title: str = "Made up"
) -> Run:
    """A recorded run of these rounds; its plain twin says the same, each token in ``plain_pass`` seconds."""
    texts = [token["text"] for each in rounds for token in each["tokens"]]
    plain = [made_round((), text, times=(0.0, plain_pass, 0.0)) for text in texts]
    return {
        "title": title,
        "prompt": "Say it.",
        "settings": {"temperature": 0, "max_tokens": 96},
        "factors": [round(len(texts) * plain_pass / sum(each["seconds"] for each in rounds), 3)],
        "kept": 0,
        "model": {"name": "toy", "backend": "made-up"},
        "provenance": {"cpu": "a processor", "cores": 2, "date": "2026-01-01T00:00:00", "command": "made up"},
        "speculating": _answer(rounds, "guesser", others),
        "plain": _answer(plain, None, others),
    }


def _answer(rounds: Sequence[dict[str, Any]], drafter: str | None, others: float) -> list[dict[str, Any]]:
    reading = 1.0
    told = []
    for each in rounds:
        reading += each["seconds"]
        told.append(each | {"seconds": round(reading, 6)})
    text = "".join(token["text"] for each in rounds for token in each["tokens"])
    stats = {
        "rounds": len(rounds),
        "draft_seconds": sum(each["draft_seconds"] for each in rounds),
        "target_seconds": sum(each["pass_seconds"] for each in rounds),
    }
    end = {"event": "end", "finish_reason": "stop", "text": text, "stats": stats, "others": others}
    return [{"event": "start", "drafter": drafter, "prompt_tokens": 3}, *told, end]
