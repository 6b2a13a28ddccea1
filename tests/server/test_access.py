"""Who is let in, how much they may send, and what happens when they leave or too many come."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import SETTINGS, alive, ask, assert_empty, assert_openai_error, events

from headstart import LLM, SamplingParams
from headstart.loading import Model, load_model
from headstart.server.access import read_keys
from headstart.server.app import create_app
from headstart.server.settings import ServerSettings

LONG = {"prompt": "abc", "temperature": 0, "max_tokens": 400, "ignore_eos": True}
ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/version"),
    ("GET", "/metrics"),
    ("GET", "/stats"),
    ("GET", "/openapi.json"),
    ("GET", "/health/"),
    ("GET", "//health"),
    ("GET", "/healthx"),
    ("GET", "/nothing"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", prefix_caching=True, tolerant=True, max_batch_size=2)


def test_every_route_but_health_asks_for_a_key(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for method, path in ROUTES:
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first"}):
                reply = await client.request(method, f"http://localhost{path}", headers=headers)
                assert_openai_error(reply, 401)
        assert (await client.get("/health")).status_code == 200
        for key in ("first", "second"):
            reply = await client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert reply.status_code == 200

    ask(llm, work, ServerSettings("tiny", api_keys=("first", "second")))


def test_keys_are_read_one_a_line() -> None:
    assert read_keys("# team\nabc\n\n  def  \n") == ("abc", "def")


def test_only_the_servers_own_names_are_answered_to(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for host, status in [("localhost:8000", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.test", 400)]:
            assert (await client.get("/health", headers={"host": host})).status_code == status

    ask(llm, work)


def test_a_long_body_is_refused_whether_it_says_so_or_not(llm: LLM) -> None:
    async def unannounced() -> Any:
        for _ in range(20):
            yield b" " * 100

    async def work(client: httpx.AsyncClient) -> None:
        assert_openai_error(await client.post("/tokenize", content=b" " * 2000), 413)
        assert_openai_error(await client.post("/tokenize", content=unannounced()), 413)

    ask(llm, work, ServerSettings("tiny", max_body_bytes=1000))


def test_pages_of_other_origins_may_ask_only_where_allowed(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> str | None:
        reply = await client.get("/health", headers={"origin": "https://page.test"})
        return reply.headers.get("access-control-allow-origin")

    assert ask(llm, work) is None
    assert ask(llm, work, ServerSettings("tiny", cors_origins=("https://page.test",))) == "https://page.test"


def test_a_full_queue_is_said_and_the_rest_is_served(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {**LONG, "max_tokens": 30}
        return await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(40)))

    replies = ask(llm, work, max_waiting=2)
    served = [reply for reply in replies if reply.status_code == 200]
    refused = [reply for reply in replies if reply.status_code != 200]
    assert len(served) >= 4
    assert refused
    for reply in refused:
        assert_openai_error(reply, 429)
        assert int(reply.headers["retry-after"]) > 0
    assert len({reply.json()["choices"][0]["text"] for reply in served}) == 1


def test_a_request_out_of_time_ends_with_an_error(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        whole = await client.post("/v1/completions", json=LONG)
        return whole, await client.post("/v1/completions", json=LONG | {"stream": True})

    whole, stream = ask(llm, work, max_seconds=1e-9)
    error = assert_openai_error(whole, 504)
    assert "longer than the 1e-09 seconds allowed" in error["message"]
    assert error["code"] == "timeout"
    assert {"error": error} in events(stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_reader_who_leaves_frees_what_the_request_held(llm: LLM, stream: bool, chunks: int) -> None:
    """The reader is gone after some chunks (at once where nothing is streamed); a neighbour stays."""
    app = create_app(llm, SETTINGS)
    sent: list[dict[str, Any]] = []

    async def leave_early(body: dict[str, Any]) -> None:
        gone = asyncio.Event()
        request = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

        async def receive() -> dict[str, Any]:
            message = next(request, None)
            if message is not None:
                return message
            if stream:
                await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if len(sent) > chunks:
                gone.set()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }
        await app(scope, receive, send)

    async def run() -> str:
        async with alive(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                body = {"prompt": "xyz", "temperature": 0, "max_tokens": 30}
                leaver = leave_early({**LONG, "stream": stream})
                stayed, _ = await asyncio.gather(client.post("/v1/completions", json=body), leaver)
                totals = (await client.get("/stats")).json()["totals"]
                assert totals['vllm:request_success_total{finished_reason="length"}'] == 1
                return stayed.json()["choices"][0]["text"]

    text = asyncio.run(run())
    assert_empty(llm)
    assert text == llm.generate("xyz", SamplingParams(temperature=0, max_tokens=30))[0].text


def test_shutdown_finishes_what_is_under_way_and_takes_no_more(llm: LLM) -> None:
    app = create_app(llm, SETTINGS)

    async def run() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            async with alive(app):
                running = asyncio.create_task(client.post("/v1/completions", json=LONG))
                while not (await client.get("/stats")).json()["now"]["vllm:num_requests_running"]:
                    await asyncio.sleep(0)
            return await running, await client.post("/v1/completions", json=LONG), await client.get("/health")

    finished, late, health = asyncio.run(run())
    assert finished.json()["usage"]["completion_tokens"] == 400
    assert_openai_error(late, 503)
    assert health.status_code == 503
    assert_empty(llm)
