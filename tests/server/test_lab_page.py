"""The lab page in a headless Chromium, against a real server with a tiny model."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")

from lab_browser import MESSAGE, PHONE, OpenPage, ready, serving, value, words
from playwright.sync_api import Locator, Page, expect
from tiny_encoder_decoders import make_model as make_encoder_decoder
from tiny_encoder_decoders import save_model as save_encoder_decoder

from headstart import LLM, SamplingParams
from headstart.engine.sequence import Sequence
from headstart.loading.model import load_model
from headstart_lab.theory import formulas as theory
from headstart_server.settings import ServerSettings


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> LLM:
    return LLM(load_model(tiny_model_dir, "fp32"), "suffix", more_drafters=["ngram", "recycling"], tolerant=True)


@pytest.fixture(scope="module")
def base(llm: LLM) -> Iterator[str]:
    with serving(llm, ServerSettings("tiny")) as address:
        yield address


@pytest.fixture
def open_page(open_address: OpenPage, base: str) -> OpenPage:
    """Opens the page of the server with the tiny model."""

    def open_(path: str = "/", address: str = base, **options: Any) -> Page:
        return open_address(address + path, **options)

    return open_


def limit(page: Page, tokens: int) -> None:
    """Set how many tokens an answer may have."""
    if not page.locator("#max-tokens").is_visible():
        page.locator("#settings summary").click()
    page.fill("#max-tokens", str(tokens))


def send(page: Page, message: str = MESSAGE, tokens: int = 40) -> Locator:
    """The answers to a message, whole: with speculation, and plain."""
    limit(page, tokens)
    page.fill("#prompt", message)
    page.click("#send")
    expect(page.locator("#status")).to_contain_text("Done")
    return page.locator("#lanes .answer")


@pytest.mark.thorough
def test_a_model_with_an_encoder_copies_what_it_read(
    open_address: OpenPage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It has no chat template: the encoder reads the message as it stands."""
    folder = save_encoder_decoder(make_encoder_decoder("t5"), tmp_path_factory.mktemp("t5"))
    encoding = LLM(load_model(folder, "fp32"), "copy", more_drafters=["suffix"])
    with serving(encoding, ServerSettings("t5")) as address:
        page = ready(open_address(address + "/"))
        speculating, plain = send(page, "the house is wonderful", 16).all()
        assert words(speculating) == words(plain)
        (expected,) = encoding.generate("the house is wonderful", SamplingParams(temperature=0, max_tokens=16))
        assert speculating.locator(".token").count() == len(expected.token_ids)
        assert expected.stats.drafted
        # One call of the encoder stands before each answer's passes.
        strips = page.locator("#timeline .call.encoder")
        assert strips.count() == 2
        assert all(float(strip.get_attribute("width") or 0) > 0 for strip in strips.all())
        assert page.locator("#timeline .call.pass").count() >= 2
        assert ", encoder 0." in (page.locator("#timeline svg").get_attribute("aria-label") or "")
        page.locator("#lanes .token").first.click()
        assert page.locator("#tree").is_visible()


def test_a_prompt_is_answered_in_coloured_tokens_beside_its_plain_twin(open_page: OpenPage) -> None:
    page = ready(open_page())
    speculating, plain = send(page).all()
    assert words(speculating) == words(plain)
    expect(page.locator("#factor")).to_contain_text("Same text, token for token")
    assert speculating.locator(".token").count() == plain.locator(".token").count() == 40
    assert plain.locator(".token.plain").count() == 40
    accepted = speculating.locator(".token.accepted")
    own = speculating.locator(".token.corrected, .token.bonus, .token.plain")
    rounds = int(speculating.locator(".token").last.get_attribute("data-round") or 0) + 1
    assert accepted.count() == 40 - own.count() > 0
    assert rounds in (own.count(), own.count() + 1)
    assert float(value(page, "tokens a round", "#numbers")) == pytest.approx(40 / rounds, abs=0.006)
    assert float(value(page, "tokens/s, plain", "#numbers")) > 0
    assert value(page, "speed-up", "#numbers").endswith("×")
    shares = page.locator("#positions li").evaluate_all("bars => bars.map(bar => bar.getAttribute('aria-label'))")
    kept = sum(int(re.search(r", (\d+) of", share).group(1)) for share in shares)  # type: ignore[union-attr]
    assert kept == accepted.count()
    expect(page.locator("#timeline svg")).to_have_attribute(
        "aria-label", re.compile(rf"speculating: {rounds} passes, [\d.]+ s; plain: 40 passes")
    )
    assert page.locator("#timeline .stripe").count() == 80
    assert page.locator("#timeline .call.pass").count() == rounds + 40
    guessed = page.locator("#timeline .call.draft").count()
    assert guessed >= accepted.count()
    label = page.locator("#timeline svg").get_attribute("aria-label") or ""
    assert re.search(r"\. speculating: drafting [\d.]+ s, target passes [\d.]+ s; plain: drafting [\d.]+ s", label)


@pytest.mark.thorough
def test_a_token_shows_the_round_it_came_from(open_page: OpenPage) -> None:
    page = ready(open_page())
    answer = send(page).first
    token = answer.locator(".token.accepted").first
    token.click()
    number = int(token.get_attribute("data-round") or 0) + 1
    expect(page.locator("#round-title")).to_contain_text(f"Round {number} of")
    assert answer.locator(".token.same-round").count() > 1
    assert page.locator("#tree .node.root").count() == 1
    node = page.locator("#tree .node.accepted").first
    assert node.get_attribute("aria-label") == f"“{token.inner_text()}”, accepted, model " + value_of(node)
    node.hover()
    assert value(page, "what became of it", "#readout") == "guessed and kept"
    assert value(page, "target probability", "#readout") == value_of(node)
    assert value(page, "draft probability", "#readout") == "a sure guess"
    page.click("#step-on")
    page.click("#step-on")
    expect(page.locator("#round-title")).to_contain_text(f"Round {number + 1} of")


def value_of(node: Locator) -> str:
    return (node.get_attribute("aria-label") or "").partition("model ")[2]


@pytest.mark.thorough
def test_the_drafter_is_switched_and_the_conversation_goes_on(open_page: OpenPage) -> None:
    page = ready(open_page())
    bodies: list[dict[str, Any]] = []
    page.on(
        "request", lambda request: bodies.append(json.loads(request.post_data)) if request.method == "POST" else None
    )
    first = words(send(page).first)
    assert page.locator("#drafter option").all_inner_texts() == ["suffix", "ngram", "recycling"]
    page.select_option("#drafter", "recycling")
    expect(page.locator("#drafter-note")).to_contain_text("runner-up")
    page.fill("#draft-tokens", "2")
    page.fill("#tree-nodes", "5")
    page.locator("#temperature").fill("0.7")
    page.select_option("#verify", "coupled")
    page.fill("#seed", "11")
    answers = send(page, "and more")
    expect(answers.first).to_contain_text("Guessing ahead (recycling)")
    speculating, plain = bodies[-2:]
    assert [message["role"] for message in speculating["messages"]] == ["user", "assistant", "user"]
    assert speculating["messages"][1]["content"] == first
    wishes = {"drafter": "recycling", "draft_tokens": 2, "tree_nodes": 5, "verify": "coupled"}
    assert speculating["speculation"] == wishes
    assert (speculating["temperature"], speculating["seed"], plain["seed"]) == (0.7, 11, 11)
    assert plain["speculation"] == {"off": True}
    assert words(answers.first) == words(answers.last)
    assert page.locator("#asked-here button").count() == 2
    page.click("#clear")
    assert page.locator("#asked-here button").count() == 0
    assert page.locator("#sketch").is_visible()
    assert page.locator("#lanes").is_hidden()


@pytest.mark.thorough
def test_a_long_answer_can_be_stopped(open_page: OpenPage, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step

    def slowly() -> list[Sequence]:
        time.sleep(0.05)
        return step()

    monkeypatch.setattr(llm.engine, "step", slowly)
    page = ready(open_page())
    limit(page, 400)
    page.fill("#prompt", MESSAGE)
    page.click("#send")
    answer = page.locator("#lanes .fast")
    answer.locator(".token").nth(3).wait_for()
    # A round that somebody looks at stays, while the answer goes on.
    assert page.locator("#tree").is_hidden()
    answer.locator(".token").first.click()
    number = page.inner_text("#round-title").partition(" of")[0]
    answer.locator(".token").nth(12).wait_for()
    assert page.inner_text("#round-title").startswith(number + " of")
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Stopped.")
    expect(page.locator("#send")).to_be_enabled()
    deadline = time.monotonic() + 10
    while not llm.engine.idle and time.monotonic() < deadline:
        time.sleep(0.01)
    assert llm.engine.idle


@pytest.mark.thorough
def test_what_the_server_refuses_is_said(open_page: OpenPage) -> None:
    page = ready(open_page())
    limit(page, 20)
    page.fill("#prompt", "much " * 2000)
    page.click("#send")
    expect(page.locator("#status")).to_contain_text("shorten the prompt")
    expect(page.locator("#send")).to_be_enabled()


def test_dials_move_the_curves_as_the_theory_says(open_page: OpenPage) -> None:
    page = open_page("/#calculator")
    own = page.locator("#plot-speed path.own").first
    before = own.get_attribute("d")
    for alpha, gamma, c in [("0.9", "8", "0.02"), ("0.1", "2", "0.3")]:
        for dial, setting in [("#alpha", alpha), ("#gamma", gamma), ("#cost", c)]:
            page.locator(dial).fill(setting)
        expected = theory.walltime_improvement(float(alpha), int(gamma), float(c))
        expect(page.locator("#outcome .lead dd")).to_have_text(f"{expected:.2f}×")
        assert own.get_attribute("d") != before
        before = own.get_attribute("d")
        expect(page.locator("#plot-tokens text.own")).to_have_text(f"γ {gamma}")
    expect(page.locator("#advice")).to_contain_text("no draft length pays")


@pytest.mark.thorough
def test_this_machines_point_stands_on_the_curves(open_page: OpenPage) -> None:
    page = ready(open_page())
    limit(page, 40)
    page.click("#tab-calculator")
    assert page.locator(".measured-point").count() == 0
    page.click("#measure")
    expect(page.locator("#measured-note")).to_contain_text("suffix: α =")
    assert page.locator(".measured-point").count() == 2
    alpha = re.search(r"α = ([\d.]+)", page.inner_text("#measured-note"))
    page.click("#adopt")
    assert alpha is not None
    expect(page.locator("#alpha-value")).to_have_text(alpha.group(1))


def distance(page: Page, rule: str) -> float:
    return float(page.locator(f"[data-rule='{rule}'] .big").inner_text())


@pytest.mark.thorough
def test_a_biased_rule_stays_away_from_the_law(open_page: OpenPage) -> None:
    page = open_page("/#rules", reduced_motion="reduce")
    expect(page.locator("#trials-value")).to_have_text("200,000")  # at once, since motion is unwelcome
    assert distance(page, "exact") < 0.006
    assert distance(page, "resample-target") > 0.05
    assert distance(page, "shared-noise") > 0.05
    page.locator("#trials").fill("0")
    assert distance(page, "exact") > 0.05
    page.locator("#trials").fill("47")
    page.locator("#likeness").fill("1")
    expect(page.locator("#rules-status")).to_contain_text("kept 100 %")
    assert distance(page, "resample-target") < 0.006


@pytest.mark.thorough
def test_words_come_one_after_another_where_motion_is_welcome(open_page: OpenPage) -> None:
    held = "window.held = []; window.requestAnimationFrame = (draw) => held.push(draw); performance.now = () => 0;"
    page = open_page("/#rules", script=held)
    expect(page.locator("#rules-status")).to_contain_text("kept")
    seen = []
    for milliseconds in (0, 700, 1400, 2100):
        page.evaluate("now => held.splice(0).forEach(draw => draw(now))", milliseconds)
        seen.append(int(page.inner_text("#trials-value").replace(",", "")))
    assert seen[0] == 10
    assert seen == sorted(set(seen))
    assert seen[-1] == 200_000


@pytest.mark.thorough
def test_nothing_is_wider_than_a_phone(open_page: OpenPage) -> None:
    page = ready(open_page(viewport=PHONE))
    page.locator("#settings summary").click()
    page.select_option("#drafter", "recycling")
    send(page)
    for tab in ("watch", "calculator", "rules"):
        page.click(f"#tab-{tab}")
        page.locator(f"#{tab}").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        for button in page.locator(f"#{tab} button:visible").all():
            box = button.bounding_box()
            assert box is not None
            assert box["height"] >= 30
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE["width"]


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.className"))


def tab_to(page: Page, name: str) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if name in focused(page).split():
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
            assert outline == "3px", f"{name} does not show that it has the focus"
            return
    raise AssertionError(f"Tab never reaches {name}")


@pytest.mark.thorough
def test_everything_is_within_reach_of_the_keyboard(open_page: OpenPage) -> None:
    page = ready(open_page())
    tab_to(page, "tab-watch")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#calculator")).to_be_visible()
    tab_to(page, "alpha")
    before = page.inner_text("#alpha-value")
    page.keyboard.press("ArrowRight")
    assert float(page.inner_text("#alpha-value")) == pytest.approx(float(before) + 0.01)
    page.reload()
    tab_to(page, "tab-calculator")
    page.keyboard.press("Home")
    expect(page.locator("#watch")).to_be_visible()
    ready(page)
    tab_to(page, "prompt")
    page.keyboard.type(MESSAGE)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Done")
    assert page.locator("#status").get_attribute("role") == "status"
    # Tokens and nodes are one tab stop each.
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('.fast .token') !== null"):
            break
    page.keyboard.press("Home")
    expect(page.locator("#round-title")).to_contain_text("Round 1 of")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#round-title")).to_contain_text("Round 2 of")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#tree') !== null"):
            break
    page.keyboard.press("ArrowLeft")
    assert value(page, "what became of it", "#readout") != ""
    assert page.evaluate("document.activeElement.closest('#tree') !== null")


def luminance(color: str) -> float:
    channels = [float(part) / 255 for part in re.findall(r"[\d.]+", color)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


CONTRAST = """elements => elements.map(element => {
  let behind = element;
  const ground = () => getComputedStyle(behind).backgroundColor;
  while (behind.parentElement && /, 0\\)$/.test(ground())) behind = behind.parentElement;
  return [element.textContent.trim(), getComputedStyle(element).color, ground()];
})"""


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(open_page: OpenPage, scheme: str) -> None:
    page = ready(open_page(color_scheme=scheme, reduced_motion="reduce"))
    send(page, tokens=12)
    page.click("#tab-rules")
    page.locator("[data-rule='exact']").wait_for()
    page.click("#tab-calculator")
    page.locator("#outcome dd").first.wait_for()
    ground = luminance(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert (ground > 0.8) if scheme == "light" else (ground < 0.05)
    seen = page.locator("p, dt, dd, h1, h2, h3, label, button:enabled, .token, .big, figcaption").evaluate_all(CONTRAST)
    assert len(seen) > 60
    for text, color, behind in seen:
        lighter, darker = sorted((luminance(color), luminance(behind)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (text, color, behind)


@pytest.mark.thorough
def test_a_server_with_keys_asks_for_one(open_page: OpenPage, tiny_model_dir: Path) -> None:
    llm = LLM(load_model(tiny_model_dir, "fp32"), "suffix", tolerant=True)
    with serving(llm, ServerSettings("tiny", api_keys=("open-sesame",))) as address:
        page = open_page(address=address)
        expect(page.locator("#key-form")).to_be_visible()
        expect(page.locator("#send")).to_be_disabled()
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#key-note")).to_contain_text("valid API key")
        page.fill("#key", "open-sesame")
        page.keyboard.press("Enter")
        expect(page.locator("#key-form")).to_be_hidden()
        assert words(send(ready(page), tokens=8).first)
        page.close()
