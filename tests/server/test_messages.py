"""Anthropic's API over HTTP: the same answers as a chat's, as Anthropic's own client reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("anthropic", reason="needs the extra 'dev'")

import anthropic
import httpx2
from serving import CHAT, alive, assert_empty, chat_text, fail_third_pass, post

from headstart import LLM
from headstart.loading.model import Model
from headstart_server.app import create_app
from headstart_server.messages_protocol import MessagesBody
from headstart_server.settings import ServerSettings

PATH = "/v1/messages"
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "messages": CHAT}
BODY = ASKED | {"temperature": 0}
GREEDY = ASKED | {"extra_body": {"temperature": 0}}
"""The same for the client, which has no argument of that name any more."""
SCHEMA = {
    "type": "object",
    "properties": {"who": {"enum": ["Ada", "Bob"]}},
    "required": ["who"],
    "additionalProperties": False,
}
GREET = {"name": "greet", "description": "does it", "input_schema": SCHEMA}
KEY = ServerSettings("tiny", api_keys=("secret",))
Result = TypeVar("Result")


def with_client(llm: LLM, work: Callable[[Any], Awaitable[Result]]) -> Result:
    """What ``work`` gets from Anthropic's client, which sends its key in x-api-key."""

    async def run() -> Result:
        app = create_app(llm, KEY)
        async with alive(app), httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as transport:
            own = {"api_key": "secret", "base_url": "http://localhost", "max_retries": 0}
            return await work(anthropic.AsyncAnthropic(http_client=transport, **own))

    result = asyncio.run(run())
    assert_empty(llm)
    return result


def told(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each named by its type."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def assert_error(response: httpx.Response, status: int, kind: str) -> str:
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    message: str = body["error"]["message"]
    return message


def test_the_client_reads_a_message_and_its_stream(llm: LLM) -> None:
    async def work(client: Any) -> tuple[Any, Any, list[str]]:
        whole = await client.messages.create(**GREEDY)
        async with client.messages.stream(**GREEDY) as stream:
            kinds = [event.type async for event in stream]
            return whole, await stream.get_final_message(), kinds

    whole, streamed, kinds = with_client(llm, work)
    assert whole.content[0].text == chat_text(llm) == streamed.content[0].text
    assert (whole.stop_reason, streamed.stop_reason, whole.model) == ("max_tokens", "max_tokens", "tiny")
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 12
    for usage in (whole.usage, streamed.usage):
        prompt = len(llm.encode_chat(CHAT).token_ids)
        assert usage.input_tokens + usage.cache_read_input_tokens == prompt
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_events_come_in_the_order_of_anthropics(llm: LLM) -> None:
    events = told(post(llm, PATH, BODY | {"stream": True}))
    kinds = [event["type"] for event in events]
    deltas = kinds.count("content_block_delta")
    assert deltas > 1
    assert kinds == [
        *("message_start", "ping", "content_block_start"),
        *["content_block_delta"] * deltas,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert {event["index"] for event in events if "index" in event} == {0}


@pytest.mark.parametrize(
    ("change", "reason", "sequence"),
    [({"stop_sequences": ["e"]}, "stop_sequence", "e"), ({"max_tokens": 1}, "max_tokens", None)],
)
def test_why_a_message_ended(llm: LLM, change: dict[str, Any], reason: str, sequence: str | None) -> None:
    body = BODY | {"max_tokens": 200} | change
    if sequence is not None:
        body["stop_sequences"] = [sequence := chat_text(llm)[3:5]]
    whole = post(llm, PATH, body).json()
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    (delta,) = (event for event in told(post(llm, PATH, body | {"stream": True})) if event["type"] == "message_delta")
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "greet"}])
def test_a_forced_call_is_a_block_streamed_or_not(llm: LLM, choice: dict[str, Any]) -> None:
    body = GREEDY | {"tools": [GREET], "tool_choice": choice, "max_tokens": 300}

    async def work(client: Any) -> tuple[Any, Any]:
        whole = await client.messages.create(**body)
        async with client.messages.stream(**body) as stream:
            return whole, await stream.get_final_message()

    for message in with_client(llm, work):
        (block,) = message.content
        assert (message.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "greet")
        assert block.input["who"] in ("Ada", "Bob")


def test_a_call_that_the_model_chose_stands_behind_its_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(llm.model.chat_template), "knows_tools", True)
    said = 'I greet. <tool_call>{"name": "greet", "arguments": {"who": "Ada"}}</tool_call>'
    body = BODY | {"tools": [GREET], "guided_choice": [said], "max_tokens": 300}
    whole = post(llm, PATH, body).json()
    text, call = whole["content"]
    assert (text["text"].strip(), call["name"], call["input"]) == ("I greet.", "greet", {"who": "Ada"})
    assert whole["stop_reason"] == "tool_use"
    events = told(post(llm, PATH, body | {"stream": True}))
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["text", "tool_use"]
    parts = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == {"who": "Ada"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_thought_is_a_block_before_the_text(model: Model) -> None:
    llm = LLM(model, "suffix", reasoning_parser="qwen3", tolerant=True)
    body = BODY | {
        "messages": [*CHAT, {"role": "assistant", "content": "<think>\nWell,"}],
        "thinking": {"type": "enabled", "budget_tokens": 10},
        "structured_outputs": {"choice": ["It is 1."]},
        "max_tokens": 300,
    }
    thought, text = post(llm, PATH, body).json()["content"]
    assert (thought["type"], thought["signature"], text["text"]) == ("thinking", "", "It is 1.")
    assert 0 < len(thought["thinking"]) <= 10
    events = told(post(llm, PATH, body | {"stream": True}))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == thought["thinking"]
    assert "".join(delta.get("text", "") for delta in deltas) == "It is 1."
    silent = body | {"thinking": {"type": "enabled", "budget_tokens": 10, "display": "omitted"}}
    assert [block["type"] for block in post(llm, PATH, silent).json()["content"]] == ["text"]


def test_a_model_that_does_not_think_is_asked_to_in_vain(llm: LLM) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    (block,) = post(llm, PATH, BODY | {"thinking": thinking}).json()["content"]
    assert block["text"] == chat_text(llm)


def test_a_schema_shapes_the_text(llm: LLM) -> None:
    wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
    reply = post(llm, PATH, BODY | {"output_config": wanted, "max_tokens": 300}).json()
    assert json.loads(reply["content"][0]["text"])["who"] in ("Ada", "Bob")


def test_blocks_are_a_chats_messages() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "greet", "input": {"who": "Ada"}}
    body = MessagesBody(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Greet"}, {"type": "text", "text": "Ada."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "Well."},
                    call,
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "done"}]},
                    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
        tools=[GREET],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
    )
    chat = body.as_chat()
    function = {"name": "greet", "arguments": '{"who": "Ada"}'}
    assert chat.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Greet\nAda."},
        {
            "role": "assistant",
            "content": "Well.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "done"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "user", "content": "And?"},
    ]
    assert chat.shown_tools() == [
        {"type": "function", "function": {"name": "greet", "parameters": SCHEMA, "description": "does it"}}
    ]
    assert (chat.tool_choice, chat.parallel_tool_calls) == ("auto", False)
    assert chat.template_variables()["enable_thinking"] is False


def test_a_begun_answer_is_continued(llm: LLM) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "Once"}]
    reply = post(llm, PATH, BODY | {"messages": begun}).json()
    assert reply["content"][0]["text"] == chat_text(llm, begun, continue_final_message=True)


def test_tokens_are_counted(llm: LLM) -> None:
    async def work(client: Any) -> int:
        counted = await client.messages.count_tokens(model="tiny", messages=CHAT, system="Be kind.")
        return int(counted.input_tokens)

    whole = [{"role": "system", "content": "Be kind."}, *CHAT]
    assert with_client(llm, work) == len(llm.encode_chat(whole).token_ids)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "messages.0"),
        ({"system": [{"type": "image"}]}, "'image'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tools": [GREET], "tool_choice": {"type": "tool", "name": "other"}}, "'other'"),
        ({"tool_choice": {"type": "any"}}, "tools is empty"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"n": 2}, "n is 2"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": [3]}, "stop_sequences"),
        ({"typical_p": 0.5}, "typical_p"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_anthropics_form(llm: LLM, change: dict[str, Any], said: str) -> None:
    assert said in assert_error(post(llm, PATH, BODY | change), 400, "invalid_request_error")


def test_the_client_raises_its_own_errors(llm: LLM) -> None:
    async def work(client: Any) -> None:
        with pytest.raises(anthropic.NotFoundError, match="is not served here"):
            await client.messages.create(**GREEDY | {"model": "other"})
        image = {"type": "image", "source": {"type": "url", "url": "x"}}
        seen = GREEDY | {"messages": [{"role": "user", "content": [image]}]}
        with pytest.raises(anthropic.BadRequestError, match="image"):
            await client.messages.create(**seen)
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="wrong").messages.create(**GREEDY)
        bearer = client.with_options(api_key=None, auth_token="secret")
        assert (await bearer.messages.create(**GREEDY)).content

    with_client(llm, work)


def test_what_stands_before_the_routes_speaks_anthropics_form(llm: LLM) -> None:
    small = ServerSettings("tiny", max_body_bytes=1000)
    assert_error(post(llm, PATH, BODY | {"system": "a" * 2000}, small), 413, "request_too_large")
    assert_error(post(llm, f"{PATH}/nothing", {}), 404, "not_found_error")


def test_a_failure_ends_the_stream_with_its_reason(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_third_pass(llm, monkeypatch, MemoryError())
    *_, last = told(post(llm, PATH, BODY | {"stream": True, "speculation": {"off": True}}))
    assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
