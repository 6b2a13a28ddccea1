"""The lab page as a visitor meets it: what is seen first, what stays, and what is said when the server is gone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")

from lab_browser import HELD, MESSAGE, OpenPage, made_round, made_run, pass_time, ready, serving, words
from playwright.sync_api import Page, Route, expect
from thinning import thorough_but

from headstart import LLM
from headstart.loading.model import load_model
from headstart_server.settings import ServerSettings

WINDOWS = [(1440, 900), (1024, 768), (390, 844)]
GONE = "start it again with “headstart serve”"
IN_SIGHT = (
    "element => { const { top, bottom } = element.getBoundingClientRect(); return top >= 0 && bottom <= innerHeight; }"
)


@pytest.fixture(scope="module")
def address(torch_model_dir: Path) -> Iterator[str]:
    # PyTorch computes it: a pass takes so long that speculation wins, and the page does not say why it lost.
    llm = LLM(load_model(torch_model_dir, "fp32"), "suffix", tolerant=True)
    with serving(llm, ServerSettings("tiny")) as base:
        yield base


def ask(page: Page, message: str = MESSAGE) -> None:
    page.evaluate("document.getElementById('max-tokens').value = 16")
    page.fill("#prompt", message)
    page.click("#send")


def finished(page: Page) -> Page:
    expect(page.locator("#status")).to_contain_text("Done")
    return page


def bottom(page: Page, selector: str) -> float:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box["y"] + box["height"]


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "height"), thorough_but([(390, 844)], WINDOWS))
def test_a_message_can_be_sent_without_scrolling(open_address: OpenPage, address: str, width: int, height: int) -> None:
    page = ready(open_address(address, viewport={"width": width, "height": height}, reduced_motion="reduce"))
    for needed in ("#prompt", "#send", "#guide", "#sketch .lane >> nth=0"):
        assert bottom(page, needed) < height
    # Without a plain answer beside it: the page would say why speculation lost, wherever this machine is busy.
    page.evaluate("document.getElementById('compare').checked = false")
    page.click("#guide-on")
    finished(page)
    # The box and the beginning of the answer are in sight together.
    top = page.locator("#prompt").bounding_box()
    assert top is not None
    assert top["y"] > 0
    assert bottom(page, ".fast .token >> nth=0") < height


@pytest.mark.thorough
def test_no_figure_is_shown_before_this_server_was_measured(open_address: OpenPage, address: str) -> None:
    asked: list[str] = []
    page = open_address(address)
    page.on("request", lambda request: asked.append(request.url))
    ready(page)
    assert not re.search(r"\d", page.locator("#watch").inner_text().replace("\n", " ").replace("1 2 3 4", ""))
    assert not any("recorded" in url for url in asked)
    ask(page)
    finished(page)
    expect(page.locator("#factor .figure")).to_have_text(re.compile(r"^\d+\.\d\d×$"))
    assert page.locator("#where").is_hidden()
    page.click("#how summary")
    assert "on this server: tiny" in page.inner_text("#where")
    assert re.search(r"on .+, \d+ cores", page.inner_text("#where"))


@pytest.mark.thorough
def test_three_words_explain_the_colours_until_more_is_asked_for(open_address: OpenPage, address: str) -> None:
    page = ready(open_address(address))
    legend = page.locator(".legend")
    assert legend.locator("li, dt").filter(visible=True).all_inner_texts() == ["guessed", "corrected", "plain"]
    page.click("#more-words summary")
    assert "bonus" in legend.locator("dt").filter(visible=True).all_inner_texts()


def test_a_first_visit_is_led_in_four_steps_and_only_once(open_address: OpenPage, address: str) -> None:
    page = ready(open_address(address))
    steps = page.locator("#guide-steps li")
    assert steps.all_text_contents() == ["Ask", "Race", "Compare", "Look inside"]
    current = page.locator("#guide-steps [aria-current=step]")
    expect(current).to_have_text("Ask")
    page.evaluate("document.getElementById('max-tokens').value = 16")
    page.click("#guide-on")
    expect(current).to_have_text("Compare")
    page.click("#guide-on")
    expect(current).to_have_text("Look inside")
    page.locator(".fast .token").first.click()
    expect(page.locator("#guide")).to_be_hidden()
    assert page.locator("#tree").is_visible()
    page.reload()
    expect(ready(page).locator("#guide")).to_be_hidden()


@pytest.mark.thorough
def test_a_finished_answer_is_not_played_again_by_itself(open_address: OpenPage, address: str) -> None:
    page = ready(open_address(address))
    page.evaluate(
        """() => {
          window.shrunk = 0;
          let most = 0;
          new MutationObserver(() => {
            const said = document.querySelectorAll("#lanes .fast .token:not(.coming)").length;
            if (said < most) window.shrunk += 1;
            most = Math.max(most, said);
          }).observe(document.getElementById("lanes"), { childList: true, subtree: true, attributes: true });
        }"""
    )
    ask(page)
    finished(page)
    page.wait_for_timeout(400)
    assert page.evaluate("shrunk") == 0
    assert page.get_attribute("#player", "data-playing") == "false"
    fast, slow = page.locator("#lanes .fast"), page.locator("#lanes .slow")
    assert words(fast) == words(slow) != ""


@pytest.mark.thorough
def test_a_reload_keeps_the_conversation(open_address: OpenPage, address: str) -> None:
    page = ready(open_address(address))
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(json.loads(request.post_data)) if request.post_data else None)
    ask(page, "abc abc")
    first = words(finished(page).locator("#lanes .fast"))
    figure = page.inner_text("#factor .figure")
    page.fill("#prompt", "half a thou")
    page.reload()
    ready(page)
    assert words(page.locator("#lanes .fast")) == first
    assert page.inner_text("#factor .figure") == figure
    assert page.input_value("#prompt") == "half a thou"
    ask(page, "and more")
    finished(page)
    contents = [message["content"] for message in bodies[-1]["messages"]]
    assert contents == ["abc abc", first, "and more"]
    assert page.locator("#asked-here button").all_inner_texts() == ["abc abc", "and more"]
    page.click("#clear")
    page.reload()
    assert ready(page).locator("#sketch").is_visible()


@pytest.mark.thorough
def test_figures_of_another_server_are_not_shown_as_this_ones(open_address: OpenPage, address: str) -> None:
    page = ready(open_address(address))
    ask(page)
    finished(page)

    def other(route: Route) -> None:
        state = route.fetch().json()
        route.fulfill(json=state | {"backend": "another-format"})

    page.route("**/lab/state", other)
    page.reload()
    ready(page)
    assert words(page.locator("#lanes .fast"))
    assert page.locator("#factor .figure").count() == 0
    expect(page.locator("#factor")).to_contain_text("Ask again to measure it here.")


def lose(page: Page, how: str) -> None:
    """Let the server be gone: at once, or in the middle of an answer."""
    begun = [{"event": "start", "drafter": "suffix", "prompt_tokens": 3}, made_round((), "Half")]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in begun)
    if how == "at once":
        # As the browser reports it, without its own note of the failure in the console.
        page.evaluate("() => { window.fetch = async () => { throw new TypeError('Failed to fetch'); }; }")
    elif how == "in the middle":
        page.route("**/lab/run", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    else:
        page.evaluate(
            """body => { window.fetch = async () => new Response(new ReadableStream({
              start(sent) {
                sent.enqueue(new TextEncoder().encode(body));
                setTimeout(() => sent.error(new TypeError("network error")), 50);
              },
            })); }""",
            body,
        )


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["at once", "in the middle", "with an error"])
def test_a_server_that_is_gone_is_said_with_what_to_do(open_address: OpenPage, address: str, how: str) -> None:
    page = ready(open_address(address, viewport={"width": 390, "height": 844}, reduced_motion="reduce"))
    ask(page, "abc abc")
    before = words(finished(page).locator("#lanes .fast"))
    lose(page, how)
    ask(page, "once more")
    expect(page.locator("#status")).to_contain_text(GONE)
    assert page.locator("#status.wrong").is_visible()
    # What was asked stands ready to be sent again, and what had come stays.
    assert page.input_value("#prompt") == "once more"
    assert page.locator("#send").is_enabled()
    assert words(page.locator("#lanes .fast")) == (before if how == "at once" else "Half")
    assert page.locator("#status").evaluate(IN_SIGHT)
    assert page.locator("#prompt").evaluate(IN_SIGHT)
    # What broke off is no part of the conversation.
    page.reload()
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(json.loads(request.post_data)) if request.post_data else None)
    page.unroute_all()
    assert ready(page).input_value("#prompt") == "once more"
    page.click("#send")
    finished(page)
    assert [message["content"] for message in bodies[0]["messages"]] == ["abc abc", before, "once more"]


def of_tokens(*tokens: tuple[str, bool]) -> dict[str, Any]:
    """A round of its own for each text; whether it ends inside of a character."""
    made = [made_round((), text) for text, _ in tokens]
    for each, (_, part) in zip(made, tokens, strict=True):
        each["tokens"][0] |= {"part": part, "label": "\\xf0"} if part else {}
    return made_run(made)


@pytest.mark.thorough
def test_characters_are_whole_in_the_lanes(play: OpenPage) -> None:
    texts = [("", True), ("", True), ("你", False), ("好", True), ("🎉", False)]
    texts += [(text, False) for text in ("👩", "\u200d", "💻", "🇫", "🇷", "e", "\u0301!")]
    page = play(of_tokens(*texts), reduced_motion="reduce")
    shown = page.locator(".fast .token").all_text_contents()
    assert shown == ["", "", "你", "好", "🎉", "", "", "👩\u200d💻", "", "🇫🇷", "", "e\u0301!"]
    # A part is drawn, and can be chosen.
    parts = page.locator(".fast .token.part")
    assert parts.count() == 6
    assert all((box := part.bounding_box()) and box["width"] > 2 for part in parts.all())
    assert "�" not in page.inner_text("#lanes")
    assert page.locator(".open").filter(visible=True).count() == 0
    # As long as a character is not whole, its last token says so.
    page.click("#view-rounds")
    for number, unfinished in [(1, True), (2, True), (3, False), (4, True), (5, False), (7, True), (8, False)]:
        page.locator("#round-slider").fill(str(number))
        marked = page.locator(".fast .token:not(.coming)").last
        assert ("open" in (marked.get_attribute("class") or "").split()) == unfinished
        mark = marked.evaluate("token => getComputedStyle(token, '::after').borderTopStyle")
        assert (mark == "dashed") == unfinished
    assert "inside of a character" in (page.locator(".fast .token").first.get_attribute("aria-label") or "")


@pytest.mark.thorough
def test_wide_letters_fit_into_the_tree(play: OpenPage) -> None:
    page = play(made_run([made_round(("漢字仮名交じり文", "🎉🎉🎉🎉"), "한국어문장")]), reduced_motion="reduce")
    page.click("#view-rounds")
    for node in page.locator("#tree .node").all():
        text, body = node.locator("text").bounding_box(), node.locator(".body").bounding_box()
        assert text is not None
        assert body is not None
        assert text["x"] >= body["x"]
        assert text["x"] + text["width"] <= body["x"] + body["width"]


@pytest.mark.thorough
def test_a_round_never_flashes_black(play: OpenPage) -> None:
    """Nodes have their colours when they are put into the page: they do not fade in from black."""
    rounds = [made_round((" two", " three"), " four", wrong=(" five",)), made_round((" six",), " seven")]
    page = play(made_run(rounds), script=HELD)
    page.click("#view-rounds")
    fills = page.evaluate(
        """() => {
          const slider = document.getElementById("round-slider");
          slider.value = 2;
          slider.dispatchEvent(new Event("input"));
          const nodes = document.querySelectorAll("#tree .node:not(.root) rect.body");
          return [...nodes].map((node) => getComputedStyle(node).fill);
        }"""
    )
    pass_time(page, 20)
    assert len(fills) == 2
    assert "rgb(0, 0, 0)" not in fills
