"""The lab page's player, with made-up runs in the exported page: rounds step by step, the race, and how both look."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")

from lab_browser import HELD, OpenPage, guess, made_round, made_run, pass_time, value, words
from playwright.sync_api import Page, expect

STORY = [
    made_round((), "One"),
    made_round((" two", " three", " four"), " five", wrong=(" six", " seven")),
    made_round((), " six", wrong=(" ten",)),
    made_round((" seven",), " eight"),
]
TEXT = "One two three four five six seven eight"
STILL = {"reduced_motion": "reduce"}


def state(page: Page) -> tuple[str, str, str]:
    """Round, step, and whether the page plays."""
    player = page.locator("#player")
    return tuple(player.get_attribute(f"data-{name}") or "" for name in ("round", "step", "playing"))  # type: ignore[return-value]


def lane(page: Page, kind: str = "fast") -> str:
    return words(page.locator(f".lane.{kind}"))


def looks(page: Page) -> list[str]:
    """What each node of the tree looks like, the root first."""
    return page.locator("#tree .node").evaluate_all("nodes => nodes.map(node => node.dataset.look)")


def play_until(page: Page, *wanted: str) -> None:
    """Let time pass until a round and a step are reached."""
    for _ in range(400):
        if state(page)[:2] == wanted:
            return
        pass_time(page, 40)
    raise AssertionError(f"{wanted} was not reached, but {state(page)}")


def enter(page: Page) -> Page:
    """Look into the rounds: the end of the best one, which is the second."""
    page.click("#view-rounds")
    assert state(page) == ("2", "accept", "false")
    page.evaluate("document.activeElement.blur()")
    return page


@pytest.mark.thorough
def test_a_finished_answer_stays_until_somebody_plays(play: OpenPage) -> None:
    page = play(made_run(STORY), script=HELD)
    for _ in range(3):
        assert (lane(page), lane(page, "slow"), state(page)[2]) == (TEXT, TEXT, "false")
        assert page.locator("#tree").is_hidden()
        pass_time(page, 4000)
    expect(page.locator("#factor")).to_contain_text("1.68×")
    page.locator("#recorded button").click()
    assert (lane(page), lane(page, "slow")) == (TEXT, TEXT)


@pytest.mark.thorough
def test_a_round_plays_step_by_step(play: OpenPage) -> None:
    page = enter(play(made_run(STORY), script=HELD))
    page.locator("#round-slider").fill("1")
    page.click("#play")
    play_until(page, "2", "draft")
    assert lane(page) == "One"
    # Draft: the guesses appear one after another, and the model's own token is not known yet.
    assert looks(page)[0] == "root"
    assert looks(page)[-1] == "coming"
    seen = {0}
    while state(page)[1] == "draft":
        seen.add(looks(page).count("guess"))
        pass_time(page, 40)
    assert seen >= {0, 1, 2, 3, 4}
    # Verify: one sweep over all of them, from left to right.
    seen = set()
    while state(page)[1] == "verify":
        checked = [look == "checked" for look in looks(page)[1:6]]
        assert checked[:3] == sorted(checked[:3], reverse=True)
        seen.add(sum(checked))
        pass_time(page, 40)
    assert {0, 5} & seen
    assert len(seen) > 2
    # Accept: along the path, then the model's own token; then they are text.
    paths = []
    while state(page)[1] == "accept" and lane(page) == "One":
        paths.append(looks(page)[1:4].count("accepted"))
        pass_time(page, 40)
    assert paths == sorted(paths)
    assert {1, 2, 3} <= set(paths)
    assert looks(page) == ["root", *["accepted"] * 3, *["rejected"] * 2, "corrected"]
    assert lane(page) == "One two three four five"
    play_until(page, "3", "draft")
    play_until(page, "4", "accept")
    pass_time(page, 5000)
    assert state(page) == ("4", "accept", "false")
    assert lane(page) == TEXT
    # Playing on from the end begins again.
    page.click("#play")
    assert state(page) == ("1", "draft", "true")


@pytest.mark.thorough
def test_tokens_fly_and_leave_nothing_behind(play: OpenPage) -> None:
    page = enter(play(made_run(STORY), script=HELD))
    page.locator("#round-slider").fill("1")
    page.evaluate(
        """() => {
          window.flown = [];
          new MutationObserver((changes) => changes.forEach((change) => change.addedNodes.forEach((node) => {
            if (node.classList?.contains('ghost')) flown.push(node.textContent);
          }))).observe(document.body, { childList: true });
        }"""
    )
    page.click("#play")
    play_until(page, "3", "draft")
    assert page.evaluate("flown") == ["·two", "·three", "·four", "·five"]
    expect(page.locator(".ghost")).to_have_count(0)


@pytest.mark.thorough
def test_steps_go_on_and_back(play: OpenPage) -> None:
    page = enter(play(made_run(STORY), script=HELD))
    for _ in range(3):
        page.click("#step-back")
    said = []
    for expected in [("2", "draft"), ("2", "verify"), ("2", "accept"), ("3", "draft")]:
        page.click("#step-on")
        assert state(page) == (*expected, "false")
        said.append(page.inner_text("#round-told"))
        # What the round comes to is not told before it is over.
        told = "the model’s correction" if expected[1] == "accept" else "the token before"
        assert value(page, "what became of it", "#readout") == told
    assert len(set(said)) == 4
    assert "guesses 5 tokens" in said[0]
    assert "all 5 guesses at once: one pass over 6 rows" in said[1]
    assert "kept 3, then added “·five” itself. That is 4 tokens for one pass" in said[2]
    page.click("#step-back")
    assert state(page) == ("2", "accept", "false")
    assert page.locator("#step-accept").get_attribute("aria-current") == "step"
    for _ in range(9):
        page.click("#step-back")
    assert state(page) == ("1", "draft", "false")
    assert lane(page) == ""
    page.locator("#round-slider").fill("4")
    assert state(page) == ("4", "accept", "false")
    assert lane(page) == TEXT
    page.click("#best")
    assert state(page) == ("2", "accept", "false")


@pytest.mark.thorough
def test_keys_play_and_step(play: OpenPage) -> None:
    page = enter(play(made_run(STORY), script=HELD))
    page.keyboard.press("Space")
    assert state(page) == ("2", "accept", "true")
    page.keyboard.press("Space")
    assert state(page) == ("2", "accept", "false")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert state(page) == ("2", "draft", "false")
    page.keyboard.press("ArrowRight")
    assert state(page) == ("2", "verify", "false")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowRight")
    assert state(page) == ("3", "accept", "false")
    page.keyboard.press("Shift+ArrowLeft")
    page.focus("#step-on")
    page.keyboard.press("ArrowRight")
    assert state(page) == ("3", "draft", "false")
    page.keyboard.press("Space")  # a button's own key
    assert state(page) == ("3", "verify", "false")
    page.focus("#speed")
    page.keyboard.press("ArrowDown")
    assert state(page) == ("3", "verify", "false")
    page.click("#view-race")
    page.locator("#race-slider").fill("0")
    page.focus("#view-race")
    page.keyboard.press("ArrowRight")
    page.focus("#play")
    at = float(page.input_value("#race-slider"))
    page.keyboard.press("ArrowRight")
    assert float(page.input_value("#race-slider")) > at


@pytest.mark.thorough
def test_where_motion_is_unwelcome_nothing_moves_by_itself(play: OpenPage) -> None:
    page = enter(play(made_run(STORY), script=HELD, **STILL))
    assert looks(page) == ["root", *["accepted"] * 3, *["rejected"] * 2, "corrected"]
    assert lane(page) == "One two three four five"
    # Play still goes from step to step, each shown as it ends.
    page.click("#step-on")
    page.click("#play")
    play_until(page, "3", "verify")
    assert looks(page)[1:] == ["checked", "coming"]
    assert page.locator(".ghost").count() == 0


@pytest.mark.thorough
def test_as_measured_each_step_takes_its_measured_time(play: OpenPage) -> None:
    slow = made_round((" b",), " c", times=(0.1, 0.3, 0.2))
    page = play(made_run([slow, slow]), script=HELD, **STILL)
    page.click("#view-rounds")
    page.locator("#round-slider").fill("1")
    page.select_option("#speed", "measured:4")
    page.click("#play")
    spent: dict[tuple[str, str], int] = {}
    for _ in range(150):
        spent[state(page)[:2]] = spent.get(state(page)[:2], 0) + 20
        pass_time(page, 20)
    assert spent[("2", "draft")] == pytest.approx(400, abs=40)
    assert spent[("2", "verify")] == pytest.approx(1200, abs=40)
    assert [page.locator(f"#step-{step} .took").inner_text() for step in ("draft", "verify", "accept")] == [
        "100 ms",
        "300 ms",
        "200 ms",
    ]


@pytest.mark.thorough
def test_the_plain_lane_shows_what_plain_decoding_had_said_by_then(play: OpenPage) -> None:
    page = enter(play(made_run(STORY), **STILL))  # 0.4 s, then rounds of 0.5 s; plain passes of 0.4 s
    page.locator("#round-slider").fill("2")
    assert (lane(page), lane(page, "slow")) == ("One two three four five", "One two")
    expect(page.locator(".lane.slow .count")).to_contain_text("2 tokens in 2 passes · 0.90 s")
    page.locator(".lane.slow .token", has_text=" two").click()
    assert state(page)[:2] == ("2", "accept")


def test_the_race_plays_both_clocks_from_the_same_start(play: OpenPage) -> None:
    page = play(made_run(STORY), script=HELD, **STILL)  # 1.9 s against 8 tokens of 0.4 s: 3.2 s
    assert page.locator("#tree").is_hidden()
    page.select_option("#speed", "measured:1")
    page.click("#play")
    assert (lane(page), lane(page, "slow")) == ("", "")
    pass_time(page, 1100)
    assert (lane(page), lane(page, "slow")) == ("One two three four five", "One two")
    expect(page.locator("#race-told")).to_contain_text("5 tokens guessing ahead, 2 plainly")
    shares = page.locator(".track .done").evaluate_all("bars => bars.map(bar => bar.style.getPropertyValue('--share'))")
    assert shares == ["62.5%", "25%"]
    pass_time(page, 1000)
    assert (lane(page), lane(page, "slow")) == (TEXT, "One two three four five")
    assert page.locator(".lane.over").count() == 1
    expect(page.locator(".lane.fast .count")).to_contain_text("1.90 s")
    pass_time(page, 1300)
    assert (lane(page), lane(page, "slow")) == (TEXT, TEXT)
    assert state(page)[2] == "false"
    expect(page.locator("#race-told")).to_have_text("Finished: 1.90 s against 3.20 s.")
    expect(page.locator("#factor")).to_contain_text("Same text, token for token.")
    page.locator("#race-slider").fill("850")
    assert (lane(page), lane(page, "slow")) == ("One", "One two")
    page.click("#play")
    pass_time(page, 200)
    assert state(page)[2] == "true"
    page.click("#view-rounds")
    assert page.locator("#tree").is_visible()
    assert state(page)[:2] == ("2", "accept")


CODE = [
    made_round((), "So"),
    made_round((":\n",), "``"),
    made_round(("`", "python", "\n"), "def"),
    made_round((" f", "():\n", "\t"), "    return  1"),
    made_round(("\n", "```"), "\n"),
    made_round((), "Done `"),
    made_round((), "`` here"),
]


@pytest.mark.thorough
def test_code_is_set_in_a_monospaced_font_with_its_white_space(play: OpenPage) -> None:
    page = play(made_run(CODE), **STILL)
    for kind in ("fast", "slow"):
        assert "".join(page.locator(f".lane.{kind} .token").all_text_contents()) == (
            "So:\n```python\ndef f():\n\t    return  1\n```\nDone ``` here"
        )
        inside = page.locator(f".lane.{kind} .code .token")
        assert "".join(inside.all_text_contents()) == "```python\ndef f():\n\t    return  1\n```"
        assert page.locator(f".lane.{kind} .code").count() == 1
        font = "tokens => tokens.map(token => [getComputedStyle(token).fontFamily, getComputedStyle(token).whiteSpace])"
        for family, space in inside.evaluate_all(font):
            assert "monospace" in family
            assert space == "pre-wrap"
        outside = page.locator(f".lane.{kind} .words > .token").evaluate_all(font)
        assert outside
        assert not any("monospace" in family for family, _ in outside)
    # All letters are as wide as the others.
    widths = page.locator(".lane.fast .code").evaluate(
        """block => ["iiii", "MMMM"].map((text) => {
          const probe = document.createElement("span"); probe.textContent = text; block.append(probe);
          const { width } = probe.getBoundingClientRect(); probe.remove(); return width;
        })"""
    )
    assert widths[0] == pytest.approx(widths[1], abs=0.1)


def wide_tree() -> dict[str, Any]:
    """39 guesses in ten levels, long ones among them."""
    nodes = [guess(f" level-{depth}-of-the-accepted-path", depth - 1) for depth in range(10)]
    for place in range(29):
        nodes.append(guess(f" sibling {place} " + "long" * (place % 5), place % 10 - 1, 0.02))
    made = made_round(
        [node["label"] for node in nodes[:10]], " bonus-token-with-a-very-long-name", times=(0.1, 0.2, 0.1)
    )
    return made | {"nodes": nodes}


OUTSIDE = """() => {
  const found = [];
  const tree = document.getElementById("tree").getBoundingClientRect();
  for (const node of document.querySelectorAll("#tree .node")) {
    const box = node.getBoundingClientRect();
    if (box.left < tree.left - 0.5 || box.right > tree.right + 0.5) found.push(node.textContent);
  }
  for (const element of document.querySelectorAll("#watch *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || element.closest(".unseen") || element.closest("svg")) continue;
    const width = document.documentElement.clientWidth;
    if (box.left < -0.5 || box.right > width + 0.5) found.push(element.outerHTML.slice(0, 90));
  }
  return found;
}"""


@pytest.mark.thorough
@pytest.mark.parametrize("width", [1280, 1024, 768, 390, 360])
def test_wide_and_deep_trees_and_long_words_fit(play: OpenPage, width: int) -> None:
    chain = made_round([f" step{i}" for i in range(24)], " end")
    word = made_round((), "a" * 300)
    page = play(made_run([wide_tree(), chain, word]), viewport={"width": width, "height": 800}, **STILL)
    page.click("#view-rounds")
    for number in ("1", "2", "3"):
        page.locator("#round-slider").fill(number)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(OUTSIDE) == []
        tree = page.locator("#tree")
        assert tree.evaluate("tree => tree.scrollWidth <= tree.clientWidth")
    page.locator("#round-slider").fill("1")
    # No node hides another.
    boxes = page.locator("#tree .body").evaluate_all(
        "nodes => nodes.map(n => n.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])"
    )
    assert len(boxes) == 41
    for one, (left, top, right, bottom) in enumerate(boxes):
        for other_left, other_top, other_right, other_bottom in boxes[one + 1 :]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart
    page.click("#view-race")
    page.locator("#race-slider").fill("100000")
    assert page.evaluate(OUTSIDE) == []


@pytest.mark.thorough
def test_a_page_that_gets_narrower_draws_its_tree_anew(play: OpenPage) -> None:
    page = play(made_run([wide_tree()]), viewport={"width": 1280, "height": 800}, **STILL)
    page.click("#view-rounds")
    before = page.locator("#tree svg").bounding_box()
    page.set_viewport_size({"width": 390, "height": 800})
    expect(page.locator("#tree svg")).not_to_have_attribute("width", str(before["width"]) if before else "")
    assert page.evaluate(OUTSIDE) == []
