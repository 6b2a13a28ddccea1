"""Servers that refuse, fail, vanish or speak another form: a verdict each time, and nothing that was found is lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from headstart.errors import HeadstartError
from headstart_lab.audit.endpoint import client
from headstart_lab.audit.endpoint.client import Endpoint
from headstart_lab.audit.endpoint.endpoint_report import exhibits, to_json
from headstart_lab.audit.endpoint.findings import EndpointAudit, Finding, Result
from headstart_lab.audit.endpoint.run import EndpointRun, EndpointSettings

Json = dict[str, Any]
WORDS = ("red ", "green ", "blue ", "one ", "two\u2028")
LATE = 40
"""Requests after which some servers change."""


class Server:
    """A sound one, without log-probabilities, but for what is given.

    Args:
        refuse: what it says to a request, as (status, words), or None.
        spoil: changes a whole reply, and each piece of a stream.
        late: takes the place of every reply after LATE requests.
        last: how streams end.
    """

    def __init__(
        self,
        refuse: Callable[[Json], tuple[int, str] | None] = lambda body: None,
        spoil: Callable[[Json], Any] = lambda reply: reply,
        late: Callable[[httpx2.Request], httpx2.Response] | None = None,
        last: str = "data: [DONE]\n\n",
    ) -> None:
        self.refuse, self.spoil, self.late, self.last = refuse, spoil, late, last
        self.requests = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            models = {"data": [{"id": "m"}]}
            if self.late is not None and self.requests > LATE:
                return self.late(request)
            return httpx2.Response(200, json=models) if request.url.path == "/v1/models" else httpx2.Response(404)
        self.requests += 1
        if self.late is not None and self.requests > LATE:
            return self.late(request)
        body = json.loads(request.content)
        if (refused := self.refuse(body)) is not None:
            return httpx2.Response(refused[0], json={"error": {"message": refused[1]}})
        return self.answer(body)

    def answer(self, body: Json) -> httpx2.Response:
        prompt = body.get("prompt") or body["messages"][0]["content"]
        limit = body.get("max_tokens") or body["max_completion_tokens"]
        choices: list[Json] = []
        for index in range(body.get("n", 1)):
            keys = (prompt,) if body["temperature"] == 0 else (prompt, body.get("seed"), index)
            text = "".join(random.Random(repr(keys)).choices(WORDS, k=limit))
            reason = "length"
            for stop in body.get("stop", ()):
                if stop in text:
                    text, reason = text[: text.index(stop)], "stop"
            if "response_format" in body:
                text, reason = '{"colour": "red", "large": true}', "stop"
            said: Json = {"content": text}
            if "tools" in body:
                called = {"name": "paint", "arguments": '{"colour": "red", "large": true}'}
                said, reason = {"content": None, "tool_calls": [{"index": 0, "function": called}]}, "tool_calls"
            choices.append({"index": index, "message": said, "text": text, "finish_reason": reason})
        tokens = limit * len(choices)
        usage = {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}
        if not body.get("stream"):
            # Not json=: what is spoilt may be no JSON.
            return httpx2.Response(200, text=json.dumps(self.spoil({"choices": choices, "usage": usage})))
        pieces = [{"choices": [{**each, "delta": each.pop("message")}]} for each in choices]
        told = [json.dumps(self.spoil(piece), ensure_ascii=False) for piece in [*pieces, {"usage": usage}]]
        return httpx2.Response(200, text="".join(f"data: {each}\r\n\r\n" for each in told) + self.last)


def audited(server: Server, **options: Any) -> EndpointAudit:
    endpoint = Endpoint("http://there", transport=httpx2.MockTransport(server), **options)
    run = EndpointRun(endpoint, None, ["Hello", "Good bye"], EndpointSettings(max_tokens=12, samples=40))
    audit = asyncio.run(run.run())
    json.dumps(to_json(audit, {}), allow_nan=False)
    exhibits(audit)
    assert "\n" not in audit.verdict
    return audit


def of(audit: EndpointAudit, check: str) -> Finding:
    (finding,) = [each for each in audit.findings if each.check == check]
    return finding


def without(name: str, status: int = 400) -> Server:
    return Server(lambda body: (status, f"unknown field {name}") if name in body else None)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_sound_server_that_gives_no_log_probabilities_passes(api: str) -> None:
    audit = audited(Server(), api=api)
    assert audit.passed, audit.verdict
    # Lines of a stream end at line feeds, not where a text holds what Unicode calls the end of a line.
    assert of(audit, "greedy texts, streamed").wanted is Result.PASS


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("seed", {"seeds asked again"}),
        ("stream", {"greedy texts, streamed"}),
        ("stream_options", set()),
        ("n", {"n"}),
        ("stop", {"stop strings"}),
        ("tools", {"tool calls"}),
        ("response_format", {"response_format"}),
        ("top_logprobs", set()),
    ],
)
@pytest.mark.parametrize("status", [400, 403])
def test_what_a_server_refuses_is_missing_and_all_else_is_judged(name: str, missing: set[str], status: int) -> None:
    audit = audited(without(name, status))
    always = {"log-probabilities", "laws by log-probabilities"}
    assert {finding.check for finding in audit.of(Result.NOT_OFFERED)} == missing | always
    assert audit.passed, audit.verdict
    assert len(audit.of(Result.PASS)) >= 8


def test_a_server_with_another_name_for_the_limit_is_asked_by_that_name() -> None:
    words = "'max_tokens' is not supported with this model; use 'max_completion_tokens'"
    audit = audited(Server(lambda body: (400, words) if "max_tokens" in body else None))
    assert audit.passed, audit.verdict


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_limit_that_is_too_large_is_no_other_name_for_it(api: str) -> None:
    """vLLM names both in that refusal, and does without the one that it does not know."""
    words = "'max_tokens' or 'max_completion_tokens' is too large"
    unknown = 0

    def refuse(body: Json) -> tuple[int, str] | None:
        nonlocal unknown
        limit = body.get("max_tokens") or body["max_completion_tokens"]
        unknown += limit <= 12 and "max_completion_tokens" in body
        return (400, words) if limit > 12 else None

    def ended(reply: Json) -> Json:
        for choice in reply.get("choices", ()):
            choice["finish_reason"] = "stop"
        return reply

    audit = audited(Server(refuse, ended), api=api)
    assert of(audit, "texts that end by themselves").wanted is Result.NOT_OFFERED
    assert of(audit, "n").wanted is Result.PASS
    assert not unknown


@pytest.mark.parametrize(("api", "other"), [("chat", "completions"), ("completions", "chat")])
def test_a_route_that_is_missing_names_the_other_one(api: str, other: str) -> None:
    with pytest.raises(HeadstartError, match=rf"status 404: .*--api {other}\."):
        audited(Server(lambda body: (404, "Not Found")), api=api)


def test_completions_that_do_not_know_a_schema_are_no_fault() -> None:
    class Plain(Server):
        def answer(self, body: Json) -> httpx2.Response:
            answer: httpx2.Response = super().answer(
                {name: value for name, value in body.items() if name != "response_format"}
            )
            return answer

    def ended(reply: Json) -> Json:
        for choice in reply.get("choices", ()):
            choice["finish_reason"] = "stop"
        return reply

    server = Plain(spoil=ended)
    assert of(audited(server, api="completions"), "response_format").wanted is Result.NOT_OFFERED
    assert of(audited(Plain(spoil=ended)), "response_format").wanted is Result.FAIL


def test_requests_that_are_put_off_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_WAITS", (0.001,) * 30)
    sometimes = iter(range(10**6))
    audit = audited(Server(lambda body: (429, "slow down") if next(sometimes) % 3 else None))
    assert audit.passed, audit.verdict
    with pytest.raises(HeadstartError, match=r"again and again \(status 429: slow down\); lower --concurrency"):
        audited(Server(lambda body: (429, "slow down")))


def gone(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("All connection attempts failed")


def test_a_server_that_is_gone_ends_the_audit_with_what_was_found() -> None:
    audit = audited(Server(late=gone))
    assert audit.verdict.startswith("UNFINISHED, nothing wrong so far: "), audit.verdict
    assert "no server answers at http://there" in audit.ended
    assert len(audit.of(Result.PASS)) >= 4
    assert not audit.passed


def cut(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.RemoteProtocolError("peer closed connection without sending complete message body")


def reset(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadError("reset")


def hang(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadTimeout("")


def other(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, text="<html>\x1b[2Jmaintenance</html>")


def broken(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(502, text="<html>\x1b[2J\nbad\tgateway</html>")


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (cut, "broke off twice"),
        (reset, "broke off twice"),
        (hang, "gave no answer within 600 seconds"),
        (other, "another form"),
        (broken, "status 502"),
    ],
)
def test_a_server_that_begins_to_fail_fails_and_keeps_what_was_found(
    late: Callable[[httpx2.Request], httpx2.Response], said: str
) -> None:
    audit = audited(Server(late=late))
    assert audit.verdict.startswith("FAIL: ")
    assert said in audit.verdict
    assert "\x1b" not in audit.verdict
    assert len(audit.of(Result.PASS)) >= 4


def test_a_server_that_hangs_in_a_law_is_that_law_s_fault_and_asked_no_more() -> None:
    class Hanging(Server):
        hangs = False

        def __call__(self, request: httpx2.Request) -> httpx2.Response:
            body = json.loads(request.content) if request.content else {}
            self.hangs = self.hangs or body.get("top_p", 1) < 1
            return hang(request) if self.hangs else super().__call__(request)

    server, sound = (Endpoint("http://there", transport=httpx2.MockTransport(each)) for each in (Hanging(), Server()))
    audit = asyncio.run(EndpointRun(server, sound, ["x"], EndpointSettings(max_tokens=12, samples=40)).run())
    assert [finding.check for finding in audit.of(Result.FAIL)] == ["law of top_p 0.5"]
    assert "gave no answer within 600 seconds" in audit.ended


def spoilt(name: str, value: Any) -> Callable[[Json], Any]:
    """Puts something else in the place of whatever has a name, everywhere in a reply."""

    def change(told: Any) -> Any:
        if isinstance(told, dict):
            return {key: value if key == name else change(held) for key, held in told.items()}
        return [change(held) for held in told] if isinstance(told, list) else told

    return change


ODD = [None, 7, "7", -1, float("nan"), [], {}, [1], {"a": 1}, True, [[[[]]]]]
NAMES = ("choices", "index", "message", "content", "finish_reason", "usage", "completion_tokens", "total_tokens")
PARTS = ("delta", "tool_calls", "function", "arguments")


@pytest.mark.parametrize("name", [*NAMES, *PARTS])
def test_no_form_of_an_answer_is_more_than_the_server_s_fault(name: str) -> None:
    for value in ODD:
        try:
            audited(Server(spoil=spoilt(name, value)))
        except HeadstartError as error:
            assert "another form than OpenAI's" in str(error)  # noqa: PT017


@pytest.mark.parametrize("value", [None, "0", float("nan"), 1e9, [], {}])
def test_log_probabilities_that_are_no_numbers_are_found(value: Any) -> None:
    def told(reply: Json) -> Json:
        for choice in reply.get("choices", ()):
            entry = {"token": "red ", "logprob": value, "top_logprobs": []}
            choice["logprobs"] = {"content": [entry]} if "message" in choice else None
        return reply

    # They come whether asked for or not, so that the first answer shows them.
    with pytest.raises(HeadstartError, match="a log-probability is"):
        audited(Server(spoil=told))


def test_minus_infinity_is_no_more_than_very_unlikely() -> None:
    def told(reply: Json) -> Json:
        for choice in reply.get("choices", ()):
            entries = [{"token": token, "logprob": logprob} for token, logprob in (("a", 0.0), ("b", float("-inf")))]
            choice["message"]["content"] = "b"
            choice["logprobs"] = {"content": [{**entries[0], "top_logprobs": entries}]}
        return reply

    audit = audited(Server(lambda body: (400, "no") if body.get("stream") else None, told))
    assert not audit.passed


def test_usage_that_leaves_out_what_it_may_be_the_sum_of_is_no_fault() -> None:
    def fewer(reply: Json) -> Json:
        for name in ("prompt_tokens", "total_tokens"):
            reply.get("usage", {}).pop(name, None)
        return reply

    assert audited(Server(spoil=fewer)).passed


@pytest.mark.parametrize(("ending", "said"), [("", "ended a stream without"), ('data: {"error": "gone"}\n\n', "gone")])
def test_streams_that_do_not_end_are_found_beside_all_else(ending: str, said: str) -> None:
    audit = audited(Server(last=ending))
    assert f"greedy texts, streamed: http://there {'broke off' if ending else 'ended'}" in audit.verdict
    assert said in audit.verdict
    assert of(audit, "greedy texts asked again").wanted is Result.PASS


def test_a_key_that_is_not_taken_is_told_from_a_missing_one() -> None:
    locked = httpx2.MockTransport(lambda request: httpx2.Response(401, json={"error": {"message": "wrong key"}}))
    for key, said in ((None, "wants an API key"), ("k", r"does not take the key .* \(status 401: wrong key\)")):
        run = EndpointRun(Endpoint("http://there", key=key, transport=locked), None, ["x"], EndpointSettings())
        with pytest.raises(HeadstartError, match=said):
            asyncio.run(run.run())


def test_an_address_that_sends_elsewhere_names_the_other_one() -> None:
    def moved(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(308, headers={"location": f"https://there{request.url.path}"})

    for model in (None, "m"):
        endpoint = Endpoint("http://there", model, transport=httpx2.MockTransport(moved))
        run = EndpointRun(endpoint, None, ["x"], EndpointSettings())
        with pytest.raises(HeadstartError, match="http://there sends on to https://there; give that address"):
            asyncio.run(run.run())


def test_pages_that_are_elsewhere_are_none_of_the_server_s() -> None:
    class Elsewhere(Server):
        def __call__(self, request: httpx2.Request) -> httpx2.Response:
            if request.url.path in ("/openapi.json", "/props"):
                return httpx2.Response(302, headers={"location": "/login"})
            return super().__call__(request)

    assert audited(Elsewhere()).passed


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/chat/completions", "/v1/completions"])
def test_an_address_may_be_any_that_clients_take(end: str) -> None:
    assert Endpoint(f"http://there{end}").url == "http://there"
