"""What a server's answers become, whichever server it is."""

from __future__ import annotations

import asyncio
import json
import math
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from headstart.errors import ConfigError, HeadstartError
from headstart_lab.audit.endpoint.answers import Answer
from headstart_lab.audit.endpoint.client import Endpoint, Refused
from headstart_lab.audit.endpoint.findings import Result
from headstart_lab.audit.endpoint.run import EndpointRun, EndpointSettings, declared_fields
from headstart_lab.audit.endpoint.texts import Greedy
from headstart_lab.provenance import provenance

Reply = Callable[[httpx2.Request], httpx2.Response]


def with_endpoint(reply: Reply, work: Callable[[Endpoint], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        endpoint = Endpoint("http://there", "m", transport=httpx2.MockTransport(reply), **options)
        async with endpoint.connected():
            return await work(endpoint)

    return asyncio.run(run())


def asked(reply: Any, stream: bool = False, api: str = "chat", **fields: Any) -> tuple[Answer, dict[str, Any]]:
    """The answer that a reply becomes, and the body that was sent for it."""
    sent: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(json.loads(request.content) | {"path": request.url.path})
        return httpx2.Response(200, text=reply) if isinstance(reply, str) else httpx2.Response(200, json=reply)

    got = with_endpoint(answer, lambda endpoint: endpoint.ask("Hello", stream, **fields), api=api)
    return got, sent[0]


def test_a_password_is_sent_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    url, sent = "http://me:s%40cret@there:8000", list[httpx2.Request]()
    monkeypatch.setattr("sys.argv", ["headstart", "audit", "--url", url, f"--against={url}/v1"])

    def moved(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(308, headers={"location": f"http://me:s%40cret@here{request.url.path}"})

    run = EndpointRun(Endpoint(url, transport=httpx2.MockTransport(moved)), Endpoint(url), ["x"], EndpointSettings())
    with pytest.raises(HeadstartError) as told:
        asyncio.run(run.run())
    assert sent[0].headers["authorization"] == f"Basic {b64encode(b'me:s@cret').decode()}"
    assert (run.audit.url, run.audit.against) == ("http://there:8000",) * 2
    shown = f"{told.value}{run}{provenance()}"
    assert "http://here" in shown
    assert "cret" not in shown
    for bad in ("ftp://me:s@cret@there", "http://me:s@cret@:1:2"):
        with pytest.raises(ConfigError, match="give an address like") as refused:
            Endpoint(bad)
        assert "cret" not in str(refused.value)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop", **more}]}


def test_fields_go_under_each_apis_names() -> None:
    _, body = asked(chat("x"), temperature=1, seed=None, top=5)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hello"}],
        "temperature": 1,
        "logprobs": True,
        "top_logprobs": 5,
        "path": "/v1/chat/completions",
    }
    text = {"choices": [{"index": 0, "text": "x", "finish_reason": "length", "logprobs": None}]}
    answer, body = asked(text, api="completions", top=3)
    assert body == {"model": "m", "prompt": "Hello", "logprobs": 3, "path": "/v1/completions"}
    assert (answer.text, answer.first.finish_reason, answer.first.positions) == ("x", "length", None)


def test_tokens_are_told_apart_by_ids_where_there_are_any() -> None:
    def entry(token: str, logprob: float, **more: Any) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode()), **more}

    content = [entry("a", -1.0, id=7, top_logprobs=[entry("b", -2.0, id=8), entry("a", -1.0, id=7)])]
    answer, _ = asked(chat("a", logprobs={"content": content}))
    (position,) = answer.first.positions or ()
    assert [(each.key, each.text) for each in position.top] == [("7", "a"), ("8", "b")]
    spelt = [{"token": "token_id:7", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]
    answer, _ = asked(chat("a", logprobs={"content": spelt}))
    assert (answer.first.positions or ())[0].chosen.key == "7"


def test_tokens_that_cannot_be_told_apart_are_added() -> None:
    same = {"token": "\ufffd", "logprob": math.log(0.25), "bytes": None}
    content = [{**same, "top_logprobs": [same, same]}]
    answer, _ = asked(chat("x", logprobs={"content": content}))
    (only,) = (answer.first.positions or ())[0].top
    assert math.exp(only.logprob) == pytest.approx(0.5)


def test_completions_log_probabilities() -> None:
    told = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0], "top_logprobs": [{"a": -0.5, "c": -2.0}, None]}
    answer, _ = asked({"choices": [{"index": 0, "text": "ab", "logprobs": told}]}, api="completions")
    first, second = answer.first.positions or ()
    assert [each.key for each in first.top] == ["a", "c"]
    assert second.top == ()


def test_a_stream_is_put_together() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "paint", "arguments": '{"a"'}}
    rest = {"index": 0, "function": {"arguments": ": 1}"}}
    chunks: list[Any] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]},
        {"choices": [{"index": 1, "delta": {"content": "B"}}, {"index": 0, "delta": {"content": "b"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [rest]}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}},
    ]
    text = ": a comment\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    answer, body = asked(text, stream=True)
    assert body["stream_options"] == {"include_usage": True}
    assert [choice.text for choice in answer.choices] == ["ab", "B"]
    assert answer.first.calls == (("paint", '{"a": 1}'),)
    assert (answer.first.finish_reason, answer.completion_tokens) == ("tool_calls", 4)


@pytest.mark.parametrize(
    ("reply", "stream", "message"),
    [
        ("data: {}", True, "without \\[DONE\\]|another form"),
        ('data: {"choices": []}\n\n', True, r"ended a stream without \[DONE\]"),
        ('data: {"error": {"message": "gone"}}\n\n', True, "broke off a stream: gone"),
        ({"choices": []}, False, "another form than OpenAI's .there is no choice"),
        ("no JSON", False, "another form than OpenAI's"),
        ({"object": "list"}, False, "another form than OpenAI's"),
        (
            {"choices": [{"message": {}, "logprobs": {"content": [{"token": "a", "bytes": 1 << 62}]}}]},
            False,
            "bytes is a number, no list",
        ),
    ],
)
def test_other_forms_are_said(reply: Any, stream: bool, message: str) -> None:
    with pytest.raises(HeadstartError, match=message):
        asked(reply, stream)


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (400, {"error": {"message": "n is 3"}}, Refused, "status 400: n is 3"),
        (422, {"detail": "no"}, Refused, "status 422"),
        (501, {"error": {"message": "not here"}}, Refused, "not here"),
        (401, {}, HeadstartError, "--api-key-file"),
        (500, {"error": {"message": "broken"}}, HeadstartError, "failed with status 500: broken"),
    ],
)
def test_refusals_are_told_from_failures(status: int, body: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        with_endpoint(lambda request: httpx2.Response(status, json=body), lambda endpoint: endpoint.ask("Hello"))


def test_a_connection_that_was_closed_meanwhile_is_tried_once_more() -> None:
    def closing(times: int) -> Reply:
        left = [times]

        def reply(request: httpx2.Request) -> httpx2.Response:
            left[0] -= 1
            if left[0] >= 0:
                raise httpx2.RemoteProtocolError("Server disconnected without sending a response.")
            return httpx2.Response(200, json=chat("x"))

        return reply

    assert with_endpoint(closing(1), lambda endpoint: endpoint.ask("Hello")).text == "x"
    with pytest.raises(HeadstartError, match="broke off twice"):
        with_endpoint(closing(2), lambda endpoint: endpoint.ask("Hello"))


def test_the_model_is_the_first_that_is_listed() -> None:
    async def named(models: Any) -> str | None:
        reply = httpx2.MockTransport(lambda request: httpx2.Response(200, json=models))
        async with Endpoint("http://there", transport=reply).connected() as endpoint:
            return endpoint.model

    assert asyncio.run(named({"data": [{"id": "first"}, {"id": "second"}]})) == "first"
    with pytest.raises(HeadstartError, match="lists no model; name one with --model"):
        asyncio.run(named({"data": []}))


def test_llama_cpps_props_declare_its_fields() -> None:
    props = {"default_generation_settings": {"params": {"top_k": 40, "min_p": 0.05}, "n_ctx": 1}}

    def reply(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=props) if request.url.path == "/props" else httpx2.Response(404)

    assert {"top_k", "min_p"} <= with_endpoint(reply, declared_fields)


def parted(gap: float | None, heard: str) -> Result:
    """What is made of a greedy text that became another, where the best two tokens are so far apart."""

    def entry(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    def reply(request: httpx2.Request) -> httpx2.Response:
        if gap is None or "top_logprobs" not in json.loads(request.content):
            return httpx2.Response(200, json=chat("one two"))
        tops = [("one", "six"), (" two", " three")]
        content = [
            entry(best, -0.5) | {"top_logprobs": [entry(best, -0.5), entry(other, -0.5 - gap)]} for best, other in tops
        ]
        return httpx2.Response(200, json=chat("one two", logprobs={"content": content}))

    async def work(endpoint: Endpoint) -> Result:
        greedy = Greedy(endpoint, ["Hello"], 8)
        await greedy.begin()
        return (await greedy.compare("texts", [(0, "one two", heard)])).wanted

    found: Result = with_endpoint(reply, work)
    return found


@pytest.mark.parametrize(
    ("gap", "heard", "result"),
    [
        (0.1, "one two", Result.PASS),
        (0.1, "one three", Result.ROUNDING),
        (2.0, "one three", Result.FAIL),
        (0.1, "one four", Result.FAIL),
        (0.1, "one", Result.FAIL),
        (None, "one three", Result.UNCLEAR),
    ],
)
def test_rounding_is_told_from_a_fault_by_the_servers_own_probabilities(
    gap: float | None, heard: str, result: Result
) -> None:
    assert parted(gap, heard) is result
