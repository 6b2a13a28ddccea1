"""Who is let in, how much they may send, and what happens when they leave or too many come."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import SETTINGS, alive, ask, assert_empty, assert_openai_error, events

from headstart import LLM, SamplingParams
from headstart.loading.model import Model, load_model
from headstart_server.access import read_keys
from headstart_server.app import create_app
from headstart_server.bodies import BodyBudget
from headstart_server.settings import ServerSettings

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
            for headers in (
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Basic first"},
                {"x-api-key": "x"},
            ):
                reply = await client.request(method, f"http://localhost{path}", headers=headers)
                assert_openai_error(reply, 401)
        assert (await client.get("/health")).status_code == 200
        for key in ("first", "second"):
            for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                assert (await client.get("/v1/models", headers=headers)).status_code == 200

    ask(llm, work, ServerSettings("tiny", api_keys=("first", "second")))


def test_keys_are_read_one_a_line() -> None:
    assert read_keys("# team\nabc\n\n  def  \n") == ("abc", "def")


def test_only_the_servers_own_names_are_answered_to(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        own = ["localhost:8000", "127.0.0.1", "[::1]:80", "[::1]", "LOCALHOST", "localhost:"]
        others = [
            "evil.test",
            "[::1]evil",
            "[::1]:80evil",
            "localhost:80.evil.test",
            "[::1",
            "::1]",
            "",
            "[]",
            "evil@localhost",
        ]
        others += ["localhost:80:80", "localhost.evil.test", "[localhost]", "localhost/", "[::1].evil.test"]
        for host, status in [*((name, 200) for name in own), *((name, 400) for name in others)]:
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


def test_what_reads_no_body_is_sent_none(llm: LLM) -> None:
    asked: list[bytes] = []

    async def endless() -> AsyncIterator[bytes]:
        while len(asked) < 1000:
            asked.append(b" " * 1000)
            yield asked[-1]

    async def work(client: httpx.AsyncClient) -> None:
        for method, path, status in [
            ("POST", "/v1/audio/nowhere", 404),
            ("POST", "/nowhere", 404),
            ("PUT", "/v1/completions", 405),
            ("POST", "/v1/models", 405),
            ("POST", "/v1/audio/transcriptions", 400),
            ("GET", "/v1/models", 200),
            ("OPTIONS", "/v1/completions", 204),
        ]:
            reply = await client.request(method, path, content=endless())
            assert reply.status_code == status, path
        assert len(asked) <= 7  # the client hands over a first piece unasked

    ask(llm, work)


def test_bodies_are_bounded_together_and_a_slow_one_keeps_out_nobody(llm: LLM) -> None:
    settings = ServerSettings("tiny", max_body_bytes=400_000, max_bodies_bytes=500_000)
    gate, halted = asyncio.Event(), list[int]()

    async def halting() -> AsyncIterator[bytes]:
        yield b'{"prompt": "' + b"a" * 300_000
        halted.append(1)
        await gate.wait()
        yield b'"}'

    async def work(client: httpx.AsyncClient) -> None:
        slow = [asyncio.create_task(client.post("/tokenize", content=halting(), headers=JSON)) for _ in range(5)]
        while len(halted) + sum(each.done() for each in slow) < 5:
            await asyncio.sleep(0)
        for size in (10, 60_000, 390_000):
            reply = await client.post("/tokenize", json={"prompt": "a" * size})
            assert reply.status_code == 200
        gate.set()
        for reply in await asyncio.gather(*slow):
            assert assert_openai_error(reply, 429)["code"] == "bodies_full"
            assert int(reply.headers["retry-after"]) > 0
        # All that they took is given back.
        assert (await client.post("/tokenize", json={"prompt": "a" * 390_000})).status_code == 200

    ask(llm, work, settings)


@pytest.mark.parametrize("size", [64, 1000, 1 << 16])
def test_a_budget_counts_what_is_held_and_no_more(size: int) -> None:
    budget = BodyBudget(3 << 20)
    with budget.held() as first, budget.held() as second:
        for _ in range((2 << 20) // size):
            budget.add(first, b"x" * size)
        assert len(budget.whole(first)) == (2 << 20) // size * size
        for _ in range((2 << 20) // size):
            budget.add(second, b"x" * size)
        assert second.refused
        assert not second.data
    with budget.held() as third:
        budget.add(third, b"x" * (3 << 20))
        assert not third.refused


JSON = {"content-type": "application/json"}


def test_pages_of_other_origins_may_ask_only_where_allowed(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> str | None:
        reply = await client.get("/health", headers={"origin": "https://page.test"})
        return reply.headers.get("access-control-allow-origin")

    assert ask(llm, work) is None
    assert ask(llm, work, ServerSettings("tiny", cors_origins=("https://page.test",))) == "https://page.test"


def test_a_full_queue_is_said_and_the_rest_is_served(llm: LLM) -> None:
    full, step, room = threading.Event(), llm.engine.step, llm.engine.limits.max_sequences + 2
    llm.engine.step = lambda *seconds: full.wait() and step(*seconds)  # type: ignore[method-assign, assignment]

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {**LONG, "max_tokens": 30}
        replies = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(40)]
        while sum(each.done() for each in replies) < 40 - room:
            await asyncio.sleep(0)
        full.set()
        return await asyncio.gather(*replies)

    replies = ask(llm, work, max_waiting=2)
    served = [reply for reply in replies if reply.status_code == 200]
    refused = [reply for reply in replies if reply.status_code != 200]
    assert len(served) == room < 40
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
def test_a_reader_who_leaves_frees_what_the_request_held(slow_llm: LLM, stream: bool, chunks: int) -> None:
    """The reader is gone after some chunks (at once where nothing is streamed); a neighbour stays."""
    app = create_app(slow_llm, SETTINGS)
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
    assert_empty(slow_llm)
    assert text == slow_llm.generate("xyz", SamplingParams(temperature=0, max_tokens=30))[0].text


def test_shutdown_finishes_what_is_under_way_and_takes_no_more(slow_llm: LLM) -> None:
    app = create_app(slow_llm, SETTINGS)

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
    assert_empty(slow_llm)
