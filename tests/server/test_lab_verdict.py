"""What the lab page says of a pair of answers: who was faster, whether the text is the same, why speculation lost."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from thinning import thorough_but

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")

from lab_browser import OpenPage, made_round, made_run
from playwright.sync_api import expect

STILL = {"reduced_motion": "reduce"}


def test_a_pair_whose_texts_differ_says_so(play: OpenPage) -> None:
    run = made_run([made_round((" two", " three"), " four")])
    run["plain"][-1] = run["plain"][-1] | {"text": "Something else"}
    page = play(run, **STILL)
    expect(page.locator("#factor")).to_contain_text("The two differ")


def round_of(draft: float, target: float, rest: float = 0.01, kept: int = 2, rows: int = 6) -> dict[str, Any]:
    names = [f" w{i}" for i in range(rows)]
    return made_round(names[:kept], " x", wrong=names[kept:], times=(draft, target, rest))


more = partial(pytest.param, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("rounds", "others", "tone", "reason"),
    [
        ([round_of(0.01, 0.5)] * 4, 0.02, "win", ""),
        more([round_of(0.01, 0.5)] * 4, 0.5, "win", "other programs used 50 % of the machine’s cores"),
        more([round_of(0.01, 1.18)] * 4, 0.0, "even", ""),
        ([round_of(0.01, 1.6)] * 4, 0.63, "loss", "the machine was busy. Other programs used 63 % of its cores"),
        more([round_of(0.01, 0.6, kept=0)] * 4, 0.0, "loss", "hardly any guess was right"),
        more([round_of(1.0, 0.5)] * 4, 0.0, "loss", "guesser itself took 66 % of the time"),
        more([round_of(0.01, 1.6)] * 4, 0.0, "loss", "a pass over 7.0 rows costs this machine much more"),
    ],
)
@pytest.mark.parametrize("scheme", thorough_but(["light"], ["light", "dark"]))
def test_slower_than_plain_is_said_in_another_tone(
    play: OpenPage, rounds: list[dict[str, Any]], others: float, tone: str, reason: str, scheme: str
) -> None:
    page = play(made_run(rounds, others=others), color_scheme=scheme, **STILL)
    factor = page.locator("#factor")
    assert factor.get_attribute("data-tone") == tone
    # What the figure was measured under stands with how it was; why speculation lost, with the figure.
    expect(factor if tone == "loss" else page.locator("#how")).to_contain_text(reason)
    caption = {"win": "as fast as plain decoding", "even": "about as fast as", "loss": "slower"}[tone]
    expect(factor.locator(".caption")).to_contain_text(caption)
    if tone == "loss":
        expect(factor).to_contain_text("times as long as a plain pass and brought")
    color = "element => getComputedStyle(element).color"
    loss = "getComputedStyle(document.documentElement).getPropertyValue('--loss').trim()"
    told = page.locator("#factor .figure").evaluate(color)
    assert (told == hexadecimal(page.evaluate(loss))) == (tone == "loss")


def hexadecimal(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


@pytest.mark.thorough
def test_a_run_that_sometimes_lost_is_no_win(play: OpenPage) -> None:
    run = made_run([made_round((" two", " three"), " four")] * 4)
    assert run["factors"][0] > 1.5
    page = play(run | {"factors": [0.9, *run["factors"], 1.1]}, reduced_motion="reduce")
    assert page.locator("#factor").get_attribute("data-tone") == "even"
    assert "from 0.90× to" in page.inner_text("#factor")
