"""Gateways before replicas that fail, are full or are lost; and an application that is run without a server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
import httpx
from starlette.types import Message, Receive, Scope, Send

from headstart.errors import ConfigError
from headstart_integrations.ray import build_app
from headstart_integrations.ray.arguments import RayArguments
from headstart_integrations.ray.forwarding import BODY, START, Forwarded, answers
from headstart_integrations.ray.gateway import TRIES, FullError, Gateway, LostReplicaError
from headstart_integrations.ray.replica import Replica

JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
LOST: Message = {"type": "lost"}
FULL: Message = {"type": "full"}


def head(kind: bytes = JSON, status: int = 200) -> Message:
    return {"type": START, "status": status, "headers": [(b"content-type", kind)]}


def part(text: str, more: bool = True) -> Message:
    return {"type": BODY, "body": text.encode(), "more_body": more}


class Scripted:
    """Replicas that say what they are told to, one script for each try."""

    def __init__(self, *scripts: Sequence[Message], found: Sequence[dict[str, Any]] = ()) -> None:
        self.scripts = list(scripts)
        self.found = list(found)
        self.requests: list[Forwarded] = []
        self.closed = 0

    async def answer(self, request: Forwarded) -> AsyncIterator[list[Message]]:
        script = self.scripts[len(self.requests)]
        self.requests.append(request)
        try:
            for message in script:
                if message is LOST:
                    raise LostReplicaError
                if message is FULL:
                    raise FullError
                yield [message]
                await asyncio.sleep(0)
            if not script:
                await asyncio.Event().wait()
        finally:
            self.closed += 1

    async def all(self, request: Forwarded) -> Sequence[dict[str, Any]]:
        self.requests.append(request)
        return self.found


def ask(replicas: Scripted, path: str = "/v1/chat/completions", body: Any = None) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(Gateway(replicas, retry_after=3))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.request("GET" if body is None else "POST", path, json=body)

    return asyncio.run(run())


def test_an_answer_is_passed_through() -> None:
    replicas = Scripted([head(EVENTS), part(""), part("data: 1\n\n"), part("data: 2\n\n"), part("", more=False)])
    reply = ask(replicas, body={"messages": [{"role": "user", "content": "a"}]})
    assert (reply.status_code, reply.text) == (200, "data: 1\n\ndata: 2\n\n")
    (request,) = replicas.requests
    assert (request.method, request.path, request.key != "") == ("POST", "/v1/chat/completions", True)
    assert json.loads(request.body)["messages"][0]["content"] == "a"


@pytest.mark.parametrize("before", [[], [head()], [head(EVENTS), part("")]])
def test_a_request_whose_replica_is_lost_at_once_goes_to_another(before: list[Message]) -> None:
    replicas = Scripted([*before, LOST], [head(), part("fine", more=False)])
    assert ask(replicas, body={}).text == "fine"
    assert len(replicas.requests) == 2


def test_a_request_does_not_go_round_all_replicas() -> None:
    replicas = Scripted(*[[head(), LOST]] * (TRIES + 1))
    reply = ask(replicas, body={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "replica_lost")
    assert len(replicas.requests) == TRIES


def test_a_stream_that_has_begun_ends_with_an_error() -> None:
    replicas = Scripted([head(EVENTS), part("data: 1\n\n"), LOST])
    reply = ask(replicas, body={})
    first, last, rest = reply.text.split("\n\n")
    assert (first, rest) == ("data: 1", "")
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_lost"
    assert len(replicas.requests) == 1


def test_another_answer_that_has_begun_is_cut_off() -> None:
    with pytest.raises(LostReplicaError):
        ask(Scripted([head(), part('{"half": '), LOST]), body={})


def test_full_replicas_are_told_of() -> None:
    reply = ask(Scripted([FULL]), body={})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
    assert reply.json()["error"]["code"] == "queue_full"


def whole(replica: str, body: str, status: int = 200) -> dict[str, Any]:
    return {"replica": replica, "node": "n", "process": 1, "status": status, "body": body.encode()}


def test_metrics_of_all_replicas_stand_together() -> None:
    text = '# TYPE a gauge\na{model_name="x y"} 1\n# TYPE b histogram\nb_bucket{le="1.0",model_name="m"} 2\nb_count 2\n'
    reply = ask(Scripted(found=[whole("two", text), whole("one", text)]), "/metrics")
    assert reply.text == (
        '# TYPE a gauge\na{replica="one",model_name="x y"} 1\na{replica="two",model_name="x y"} 1\n'
        '# TYPE b histogram\nb_bucket{replica="one",le="1.0",model_name="m"} 2\nb_count{replica="one"} 2\n'
        'b_bucket{replica="two",le="1.0",model_name="m"} 2\nb_count{replica="two"} 2\n'
    )
    assert reply.headers["content-type"].startswith("text/plain")


def test_statistics_are_told_by_replica() -> None:
    reply = ask(Scripted(found=[whole("two", '{"now": 2}'), whole("one", '{"now": 1}')]), "/stats")
    assert reply.json() == {"replicas": {n: {"node": "n", "process": 1, "now": i} for i, n in ((1, "one"), (2, "two"))}}


def test_who_may_not_see_metrics_sees_none() -> None:
    reply = ask(Scripted(found=[whole("one", "fine"), whole("two", '{"error": 1}', 401)]), "/metrics")
    assert (reply.status_code, reply.json()) == (401, {"error": 1})
    assert ask(Scripted(), "/metrics").status_code == 503


def test_a_client_who_leaves_ends_the_request() -> None:
    replicas = Scripted([])

    async def run() -> None:
        inbox: asyncio.Queue[Message] = asyncio.Queue()
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await inbox.put({"type": "http.request", "body": b"", "more_body": False})
        serving = asyncio.create_task(Gateway(replicas)(scope, inbox.get, lambda message: asyncio.sleep(0)))
        while not replicas.requests:
            await asyncio.sleep(0)
        await inbox.put({"type": "http.disconnect"})
        await serving

    asyncio.run(run())
    assert replicas.closed == 1


def test_the_path_is_the_one_behind_the_applications_prefix() -> None:
    replicas = Scripted([head(), part("", more=False)])

    async def run() -> None:
        requests = iter([{"type": "http.request", "body": b""}])

        async def receive() -> Message:
            return next(requests, None) or await asyncio.Event().wait()  # type: ignore[return-value]

        scope = {"type": "http", "method": "GET", "path": "/llm/health", "root_path": "/llm", "headers": []}
        await Gateway(replicas)(scope, receive, lambda message: asyncio.sleep(0))

    asyncio.run(run())
    assert replicas.requests[0].path == "/health"


def forwarded(body: bytes = b"") -> Forwarded:
    return Forwarded("", "POST", "/", b"", (), body)


def test_an_application_is_told_when_its_reader_is_gone() -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told.append((await receive())["body"].decode())
        await send(head())
        try:
            await receive()
        finally:
            told.append("gone")

    async def run() -> None:
        reading = answers(app, forwarded(b"hello"))
        assert await anext(reading) == [head()]
        await reading.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())
    assert told == ["hello", "gone"]


def test_an_applications_fault_is_its_readers() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(head())
        raise ZeroDivisionError

    async def run() -> list[Message]:
        return [each async for ready in answers(app, forwarded()) for each in ready]

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())


def test_a_replica_answers_counts_and_fails_its_health_check_when_it_has_ended(tiny_model_dir: Path) -> None:
    replica = Replica("one", RayArguments(model=str(tiny_model_dir), precision="fp32", drafter="none"), ())
    body = json.dumps({"prompt": "hello", "max_tokens": 4, "temperature": 0}).encode()
    headers = ((b"content-type", b"application/json"), (b"host", b"anywhere"))
    request = Forwarded("", "POST", "/v1/completions", b"", headers, body)

    async def run() -> list[Message]:
        return [each async for ready in replica.answer(request) for each in ready]

    first, *rest = asyncio.run(run())
    assert (first["status"], dict(first["headers"])[b"headstart-replica"]) == (200, b"one")
    assert json.loads(b"".join(each["body"] for each in rest))["usage"]["completion_tokens"] == 4
    found = asyncio.run(replica.whole(Forwarded("", "GET", "/metrics", b"", headers, b"")))
    assert (found["replica"], found["status"]) == ("one", 200)
    assert b"vllm:generation_tokens_total" in found["body"]
    replica.check_health()
    replica.__del__()
    with pytest.raises(RuntimeError, match="ended"):
        replica.check_health()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicas": 2, "max_replicas": 3}, "leave out min_replicas"),
        ({"min_replicas": 3, "max_replicas": 2}, "more than max_replicas, 2"),
        ({"gpus_per_replica": 1}, "device=cuda"),
        ({"drafter": "sufix"}, "did you mean 'suffix'"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RayArguments(**given).check()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicsa": "2"}, "there is no option 'replicsa'; did you mean 'replicas'"),
        ({"replicas": "0"}, "replicas is 0; it must be 1 or more"),
        ({"replicas": "many"}, "replicas is 'many'; it must be an integer"),
    ],
)
def test_an_applications_arguments_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_app(given)


def test_without_ray_an_application_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"install headstart with its extras: headstart\[server,ray\]\.$"):
        build_app({"replicas": "2"})


def test_arguments_are_read_from_a_command_lines_texts() -> None:
    arguments = RayArguments.read({"model": "m", "replicas": "2", "also": "ngram, suffix", "cpus_per_replica": "4"})
    assert (arguments.bounds, arguments.more_drafters, arguments.threads) == ((2, 2), ("ngram", "suffix"), 4)
    assert RayArguments(min_replicas=0).bounds == (0, 1)
    assert RayArguments(max_replicas=5).bounds == (1, 5)
