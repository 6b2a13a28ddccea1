"""The lab page as files that need no server, and the runs that it plays."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lab_browser import OpenPage, made_round, made_run, words

from headstart import LLM, SamplingParams
from headstart.text.chat import ChatTemplate
from headstart_lab.page.files import page_files
from headstart_lab.page.recording import PAIRS, record
from headstart_lab.page.rules_at_work import rules_at_work
from headstart_lab.page.static_page import recorded_runs, static_page
from headstart_lab.theory import formulas as theory

MESSAGE = "abc abc abc"
GREEDY = SamplingParams(temperature=0, max_tokens=30)
HOSTILE = "</script><script>document.title = 'taken over'</script><!-- & \u2028"


@pytest.fixture(scope="module")
def recorded(model: Any) -> dict[str, Any]:
    done: list[int] = []
    run = record(LLM(model, "suffix"), "A title", MESSAGE, 30, lambda: done.append(1))
    assert len(done) == PAIRS + 1
    return run


def rounds_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == "round"]


def test_a_recording_is_the_answer_both_ways(recorded: dict[str, Any], model: Any) -> None:
    whole = LLM(model, "none").chat([{"role": "user", "content": MESSAGE}], GREEDY)[0]
    for kind, drafter in (("speculating", "suffix"), ("plain", None)):
        start, *_, end = recorded[kind]
        assert start["drafter"] == drafter
        text = "".join(token["text"] for each in rounds_of(recorded[kind]) for token in each["tokens"])
        assert text == end["text"]
        assert text == whole.text
        assert end["others"] is None or 0 <= end["others"] <= 1
    assert any(each["nodes"] for each in rounds_of(recorded["speculating"]))
    assert not any(each["nodes"] for each in rounds_of(recorded["plain"]))


def test_a_recording_says_where_and_how_and_keeps_the_median(recorded: dict[str, Any]) -> None:
    assert recorded["model"]["digest"]
    assert {"cpu", "cores", "command", "date", "load_average", "load_average_after"} <= set(recorded["provenance"])
    factors = recorded["factors"]
    assert len(factors) == PAIRS
    assert factors[recorded["kept"]] == sorted(factors)[PAIRS // 2]
    rates = []
    for kind in ("speculating", "plain"):
        rounds = rounds_of(recorded[kind])
        began = rounds[0]["seconds"] - rounds[0]["draft_seconds"] - rounds[0]["pass_seconds"]
        rates.append(sum(len(each["tokens"]) for each in rounds) / (rounds[-1]["seconds"] - began))
    assert rates[0] / rates[1] == pytest.approx(factors[recorded["kept"]], rel=0.05)


def test_a_model_without_a_chat_template_continues_the_prompt(model: Any) -> None:
    silent = replace(model, chat_template=ChatTemplate({}))
    run = record(LLM(silent, "suffix"), "Title", MESSAGE, 30, lambda: None)
    assert run["plain"][-1]["text"] == LLM(model, "none").generate(MESSAGE, GREEDY)[0].text


def test_the_runs_that_come_with_the_page_are_real_and_small() -> None:
    runs = recorded_runs()
    assert len(runs) >= 3
    assert len({run["title"] for run in runs}) == len(runs)
    assert page_files()["/lab/recorded/runs.json"].stat().st_size < 400_000
    for run in runs:
        assert run["model"]["name"] == "smollm2"
        assert run["provenance"]["command"]
        texts = [run[kind][-1]["text"] for kind in ("speculating", "plain")]
        assert texts[0] == texts[1]
        for kind in ("speculating", "plain"):
            joined = "".join(token["text"] for each in rounds_of(run[kind]) for token in each["tokens"])
            assert joined == run[kind][-1]["text"]
            clock = [each["seconds"] for each in rounds_of(run[kind])]
            assert clock == sorted(clock)
        assert any(each["path"] for each in rounds_of(run["speculating"]))


@pytest.mark.thorough
def test_recording_and_exporting_need_no_web_framework() -> None:
    modules = "headstart_lab.commands.lab, headstart_lab.page.files, headstart_lab.page.recording"
    code = f"import sys; sys.modules['fastapi'] = sys.modules['starlette'] = None; import {modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_is_whole_and_its_addresses_are_its_own() -> None:
    pages = static_page(recorded_runs())
    assert set(pages) == {"index.html", "lab.css", "lab.js", "icon.svg"}
    html = pages["index.html"]
    for address in re.findall(r'(?:src|href)="([^"#]+)"', html):
        assert address in pages
    assert 'type="module"' not in html
    assert not re.search(r"^\s*(import|export)\b", pages["lab.js"], re.MULTILINE)
    for text in pages.values():
        assert "https://" not in text
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_runs_text_cannot_leave_its_place() -> None:
    run = made_run([made_round((), HOSTILE)]) | {"prompt": HOSTILE}
    html = static_page([run])["index.html"]
    data = html.split('id="recorded-runs">')[1].split("</script>")[0]
    assert json.loads(data)["runs"][0]["prompt"] == HOSTILE


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """A static host under a path of its own."""
    folder = tmp_path / "some" / "where"
    folder.mkdir(parents=True)
    for file, text in static_page(recorded_runs()).items():
        (folder / file).write_text(text, encoding="utf-8")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/some/where/"
        server.shutdown()
        thread.join()


@pytest.mark.thorough
def test_the_page_works_from_a_static_host(open_address: OpenPage, host: str) -> None:
    page = open_address(host, reduced_motion="reduce")
    page.locator("#player").wait_for()
    assert page.locator("#recorded button").all_inner_texts() == [run["title"] for run in recorded_runs()]


@pytest.mark.thorough
def test_the_page_works_from_its_folder_without_a_server(play: OpenPage) -> None:
    hostile = made_run([made_round((), HOSTILE)], title="Hostile") | {"prompt": HOSTILE}
    runs = [*recorded_runs(), hostile]
    page = play(*runs, reduced_motion="reduce")
    for run in runs:
        page.locator("#recorded").get_by_role("button", name=run["title"], exact=True).click()
        assert page.locator("#asked").text_content() == run["prompt"]
        assert words(page.locator(".lane.fast")) == run["speculating"][-1]["text"]
        # Where it was measured stands behind "How measured".
        page.click("#how summary")
        assert run["provenance"]["cpu"] in page.inner_text("#where")
        assert run["model"]["backend"] in page.inner_text("#where")
        page.click("#how summary")
        page.click("#view-rounds")
        best = max(len(each["path"]) for each in rounds_of(run["speculating"]))
        assert page.locator("#tree .node.accepted").count() in (best, best - 1)
        page.click("#view-race")
    assert page.title() == "Headstart lab"
    for gone in ("#composer", "#measure"):
        assert page.locator(gone).is_hidden()
    told = page.locator(".exported")
    assert told.is_visible()
    assert "headstart serve" in told.inner_text()


@pytest.mark.thorough
def test_what_needs_no_server_is_in_the_exported_page(play: OpenPage) -> None:
    page = play(*recorded_runs()[:1], reduced_motion="reduce")
    page.click("#tab-calculator")
    for alpha, gamma, c, c_hat in [(0.9, 8, 0.02, 0.1), (0, 1, 0.3, 0), (0.99, 20, 0, 0.5), (0.5, 3, 0.5, 0.2)]:
        for dial, setting in [("#alpha", alpha), ("#gamma", gamma), ("#cost", c), ("#operations", c_hat)]:
            page.locator(dial).fill(str(setting))
        best = theory.best_gamma(alpha, c, 64)
        assert page.locator("#outcome dd").all_inner_texts() == [
            f"{theory.expected_tokens(alpha, gamma):.2f}",
            f"{theory.walltime_improvement(alpha, gamma, c):.2f}×",
            f"{theory.operations_increase(alpha, gamma, c_hat):.2f}×",
            str(best),
        ]
        advice = "no draft length pays" if alpha <= c else f"{theory.walltime_improvement(alpha, best, c):.2f}×"
        assert advice in page.inner_text("#advice")
    # The point of the recorded run.
    assert page.locator(".measured-point").count() == 2
    page.click("#tab-rules")
    assert page.locator("#trials-value").inner_text() == "200,000"
    for likeness in (0, 0.7, 1):
        page.locator("#likeness").fill(str(likeness))
        expected = rules_at_work(likeness)
        kept = f"kept {100 * expected['alpha']:.0f} %"
        page.wait_for_function("kept => document.getElementById('rules-status').textContent.includes(kept)", arg=kept)
        for rule in expected["rules"]:
            shown = page.locator(f"[data-rule='{rule['rule']}'] .big").inner_text()
            assert float(shown) == pytest.approx(rule["distances"][-1], abs=6e-5)
