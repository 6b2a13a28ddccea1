"""What feeds the lab page, without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import SETTINGS, ask, assert_openai_error, post
from tiny_encoder_decoders import make_model as make_encoder_decoder
from tiny_encoder_decoders import save_model as save_encoder_decoder

from headstart import LLM
from headstart.loading.model import Model, load_model
from headstart_lab.page.files import page_files
from headstart_server.settings import ServerSettings

CHAT = [{"role": "user", "content": "abc abc abc"}]
GREEDY: dict[str, Any] = {"messages": CHAT, "temperature": 0, "max_tokens": 40}
DATA = ["/lab/state", "/lab/biased-rules?trials=1000"]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", more_drafters=["ngram", "recycling"], prefix_caching=True, tolerant=True)


def get(llm: LLM, path: str, settings: ServerSettings = SETTINGS) -> httpx.Response:
    return ask(llm, lambda client: client.get(path), settings)


def run(llm: LLM, body: dict[str, Any]) -> list[dict[str, Any]]:
    return told(post(llm, "/lab/run", body))


def told(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a run."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(part.removeprefix("data: ")) for part in response.text.split("\n\n") if part]


def test_the_page_is_served_with_a_policy_that_keeps_it_here(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> dict[str, httpx.Response]:
        return {path: await client.get(path) for path in page_files()}

    pages = ask(llm, work)
    assert pages["/"].headers["content-type"] == "text/html; charset=utf-8"
    assert {"/lab/scripts/main.js", "/lab/styles/theme.css", "/lab/icon.svg"} <= set(pages)
    for reply in pages.values():
        assert reply.status_code == 200
        policy = dict(part.strip().partition(" ")[::2] for part in reply.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'self'"
        assert not {"script-src", "style-src", "connect-src"} & set(policy)
        assert "http://" not in reply.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in reply.text


def test_the_page_needs_no_key_and_everything_it_shows_does(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for path in page_files():
            assert (await client.get(path)).status_code == 200
        for path in DATA:
            assert_openai_error(await client.get(path), 401)
            reply = await client.get(path, headers={"authorization": "Bearer first"})
            assert reply.status_code == 200
        assert_openai_error(await client.post("/lab/run", json=GREEDY), 401)

    ask(llm, work, ServerSettings("tiny", api_keys=("first",)))


def test_rounds_join_to_the_answer_of_the_api(llm: LLM) -> None:
    start, *rounds, end = run(llm, GREEDY)
    whole = post(llm, "/v1/chat/completions", GREEDY).json()
    assert (start["event"], start["drafter"]) == ("start", "suffix")
    assert start["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    tokens = [token for event in rounds for token in event["tokens"]]
    assert "".join(token["text"] for token in tokens) == end["text"] == whole["choices"][0]["message"]["content"]
    assert len(tokens) == whole["usage"]["completion_tokens"]
    assert (end["event"], end["stats"]["rounds"]) == ("end", len(rounds))
    counts = whole["usage"]["speculation"]
    assert sum(len(event["nodes"]) for event in rounds) == counts["drafted"]
    assert sum(token["origin"] == "accepted" for token in tokens) == counts["accepted"] > 0


def test_a_round_says_what_it_drew_and_what_became_of_it(llm: LLM) -> None:
    body = GREEDY | {"speculation": {"drafter": "recycling", "tree_nodes": 6}}
    _, *rounds, _ = run(llm, body)
    guessed = [event for event in rounds if event["nodes"]]
    assert guessed
    for event in guessed:
        assert len(event["nodes"]) <= 6
        said = [event["nodes"][node]["label"] for node in event["path"]] + [event["answer"]["label"]]
        assert [token["label"] for token in event["tokens"]] == said[: len(event["tokens"])]
        for node in (*event["nodes"], event["answer"]):
            assert 0 <= node["target"] <= 1
            assert node["law"] in (0, 1)
            assert node["draft"] is None


def test_rounds_tell_their_times_and_the_end_how_busy_the_machine_was(llm: LLM) -> None:
    _, *rounds, end = run(llm, GREEDY)
    before = 0.0
    for event in rounds:
        assert event["draft_seconds"] >= 0
        assert event["pass_seconds"] > 0
        assert event["draft_seconds"] + event["pass_seconds"] < event["seconds"] - before
        before = event["seconds"]
    assert sum(event["pass_seconds"] for event in rounds) == pytest.approx(end["stats"]["target_seconds"])
    assert end["others"] is None or 0 <= end["others"] <= 1


def test_plain_decoding_is_shown_as_such(llm: LLM) -> None:
    start, *rounds, _ = run(llm, GREEDY | {"speculation": {"off": True}})
    assert start["drafter"] is None
    assert all(event["nodes"] == [] and event["path"] == [] for event in rounds)
    assert {token["origin"] for event in rounds for token in event["tokens"]} == {"plain"}


def test_the_encoders_call_stands_before_the_rounds(tmp_path: Path) -> None:
    """Of every run: the second one of an equal input is not flattered."""
    encoding = LLM(load_model(save_encoder_decoder(make_encoder_decoder("bart"), tmp_path), "fp32"), "copy")
    body = {"messages": [{"role": "user", "content": "the house is wonderful"}], "temperature": 0, "max_tokens": 12}

    async def work(client: httpx.AsyncClient) -> list[list[dict[str, Any]]]:
        plain = body | {"speculation": {"off": True}}
        return [told(await client.post("/lab/run", json=each)) for each in (body, plain, body)]

    for start, *rounds, end in ask(encoding, work):
        stats = end["stats"]
        assert 0 < stats["encoder_seconds"] <= stats["prefill_seconds"] <= stats["seconds"]
        assert start["prompt_tokens"] == stats["prompt_tokens"] == len("the house is wonderful") + 1
        assert all(event["pass_seconds"] > 0 for event in rounds)
        assert len(rounds) == stats["rounds"] > 0
    assert encoding.engine.runner.encoder_passes == 3


def test_runs_share_nothing(llm: LLM) -> None:
    """Neither cached prefixes nor what a drafter has learnt from the first run may flatter the second."""
    body = GREEDY | {
        "messages": [{"role": "user", "content": "abcdefgh " * 20}],
        "speculation": {"drafter": "recycling"},
    }

    async def work(client: httpx.AsyncClient) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
        runs = [told(await client.post("/lab/run", json=body)) for _ in range(2)]
        return runs, (await client.get("/stats")).json()["totals"]

    (first, second), totals = ask(llm, work)
    shapes = [[[node["label"] for node in event["nodes"]] for event in run[1:-1]] for run in (first, second)]
    assert shapes[0] == shapes[1]
    assert any(shapes[0])
    assert totals["vllm:prefix_cache_queries_total"] > 300
    assert totals["vllm:prefix_cache_hits_total"] == 0


def test_wishes_are_checked_like_the_apis(llm: LLM) -> None:
    assert_openai_error(post(llm, "/lab/run", GREEDY | {"n": 2}), 400)
    assert_openai_error(post(llm, "/lab/run", GREEDY | {"temperature": -1}), 400)
    assert_openai_error(post(llm, "/lab/run", GREEDY | {"speculation": {"drafter": "nobody"}}), 400)
    assert_openai_error(post(llm, "/lab/run", {"messages": "hello"}), 400)


def test_the_state_names_what_can_be_chosen(llm: LLM) -> None:
    state = get(llm, "/lab/state").json()
    assert [drafter["name"] for drafter in state["drafters"]] == ["suffix", "ngram", "recycling"]
    assert all(drafter["summary"] for drafter in state["drafters"])
    assert state["default_drafter"] == "suffix"
    assert {"auto", "rejection", "block", "coupled"} <= set(state["rules"])


@pytest.mark.parametrize(
    "path",
    [
        "/lab/biased-rules?trials=1000000000",
        "/lab/biased-rules?likeness=2",
        "/lab/biased-rules?seed=-1",
    ],
)
def test_numbers_out_of_range_are_refused(llm: LLM, path: str) -> None:
    assert_openai_error(get(llm, path), 400)


def test_biased_rules_stay_away_and_the_exact_one_does_not(llm: LLM) -> None:
    seen = get(llm, "/lab/biased-rules?likeness=0.2&trials=200000&seed=4").json()
    exact, *biased = seen["rules"]
    assert exact["distances"][-1] < 3 * seen["chance"][-1]
    assert exact["bias"] == pytest.approx(0, abs=1e-12)
    for rule in biased:
        assert rule["distances"][-1] == pytest.approx(rule["bias"], abs=0.01)
        assert rule["bias"] > 0.05
    assert all(len(rule["histograms"]) == len(seen["trials"]) for rule in seen["rules"])
