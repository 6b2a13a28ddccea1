"""Take the picture of the lab page for the README, from the page as ``headstart lab --export`` writes it.

    headstart lab --export page
    python docs/lab_picture.py page picture.png [--dark] [--race] [--run "Edit code"] [--width 1280]

Needs Playwright (the extra ``dev``) and a Chromium. Motion is switched off, so that the same page gives the same
picture: the best round of a run, as it looks when it is over.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    parser = argparse.ArgumentParser(description="Take a picture of an exported lab page.")
    parser.add_argument("page", type=Path, help="the folder that headstart lab --export wrote")
    parser.add_argument("picture", type=Path, help="the .png file to write")
    parser.add_argument("--run", help="title of the run to show; the first one if left out")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--race", action="store_true", help="the race at the moment when speculation has finished")
    wanted = parser.parse_args()
    chromium = os.environ.get("HEADSTART_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": wanted.width, "height": 900},
            device_scale_factor=2,
            color_scheme="dark" if wanted.dark else "light",
            reduced_motion="reduce",
        )
        page.goto((wanted.page.resolve() / "index.html").as_uri())
        player = page.locator("#player")
        player.wait_for()
        if wanted.run is not None:
            page.locator("#recorded").get_by_role("button", name=wanted.run, exact=True).click()
        page.click("#guide-skip")
        if wanted.race:
            page.click("#play")
            page.locator("#race-slider").fill(page.evaluate(FINISH))
        else:
            page.click("#view-rounds")
        page.evaluate("document.activeElement.blur()")
        player.screenshot(path=wanted.picture)
        browser.close()


FINISH = """() => {
  const runs = JSON.parse(document.getElementById("recorded-runs").textContent).runs;
  const title = document.querySelector("#recorded [aria-pressed=true]").textContent;
  const rounds = runs.find((run) => run.title === title).speculating.filter((each) => each.event === "round");
  const begin = rounds[0].seconds - rounds[0].draft_seconds - rounds[0].pass_seconds;
  return String(Math.ceil(1000 * (rounds.at(-1).seconds - begin)));
}"""
"""Milliseconds of the race after which the speculative answer is complete."""


if __name__ == "__main__":
    main()
