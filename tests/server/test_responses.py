"""Responses over HTTP: the same answers as a chat's, in the form that OpenAI's own client reads."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("openai", reason="needs the extra 'dev'")

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from serving import CHAT, ask, assert_openai_error, chat_text, fail_third_pass, post

from headstart import LLM
from headstart_server.responses_protocol import ResponsesBody

PATH = "/v1/responses"
BODY = {"model": "tiny", "input": "hello there", "temperature": 0, "max_output_tokens": 12}
GREET = {
    "type": "function",
    "name": "greet",
    "description": "does it",
    "parameters": {
        "type": "object",
        "properties": {"who": {"enum": ["Ada", "Bob"]}},
        "required": ["who"],
        "additionalProperties": False,
    },
}
EVENTS: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def streamed(llm: LLM, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each of a form that OpenAI's client knows."""
    response = post(llm, PATH, body | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = response.text.split("\n\n")
    assert rest == ""
    told = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        EVENTS.validate_python(event)
        told.append(event)
    return told


def test_a_response_says_what_a_chat_says(llm: LLM) -> None:
    reply = post(llm, PATH, BODY | {"metadata": {"a": "b"}}).json()
    told = Response.model_validate(reply)
    assert told.output_text == chat_text(llm)
    assert (told.status, told.incomplete_details.reason if told.incomplete_details else None) == (
        "incomplete",
        "max_output_tokens",
    )
    assert (told.model, told.metadata, told.max_output_tokens) == ("tiny", {"a": "b"}, 12)
    assert told.usage is not None
    assert (told.usage.output_tokens, told.usage.total_tokens) == (12, told.usage.input_tokens + 12)
    assert reply["usage"]["speculation"]["drafter"] == "suffix"


def test_a_finished_response_is_completed(llm: LLM) -> None:
    reply = post(llm, PATH, BODY | {"text": {"format": {"type": "text"}}, "stop": [chat_text(llm)[3:5]]}).json()
    assert (reply["status"], reply["incomplete_details"]) == ("completed", None)
    assert reply["output"][0]["content"][0]["text"] == chat_text(llm).split(chat_text(llm)[3:5])[0]


def test_a_stream_adds_up_to_the_response(llm: LLM) -> None:
    whole = post(llm, PATH, BODY).json()
    events = streamed(llm, BODY)
    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert kinds == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * len(deltas),
        *("output_text.done", "content_part.done", "output_item.done", "incomplete"),
    ]
    assert len(deltas) > 1
    assert "".join(deltas) == whole["output"][0]["content"][0]["text"]
    last = events[-1]["response"]
    assert last["output"][0]["content"] == whole["output"][0]["content"]
    assert last["id"] == events[0]["response"]["id"]
    assert {event.get("item_id", last["output"][0]["id"]) for event in events} == {last["output"][0]["id"]}


def test_log_probabilities_come_where_they_are_included(llm: LLM) -> None:
    body = BODY | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (item,) = post(llm, PATH, body).json()["output"]
    entries = item["content"][0]["logprobs"]
    assert len(entries) == 12
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    deltas = [event for event in streamed(llm, body) if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == entries
    assert post(llm, PATH, BODY).json()["output"][0]["content"][0]["logprobs"] == []


@pytest.mark.parametrize(
    "given",
    [
        CHAT,
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello there"}]}],
        [{"type": "reasoning", "id": "rs_1", "summary": []}, *CHAT],
        [{"role": "user", "content": [{"type": "input_text", "text": "hello"}, {"type": "text", "text": " there"}]}],
    ],
)
def test_items_are_messages(llm: LLM, given: list[dict[str, Any]]) -> None:
    assert Response.model_validate(post(llm, PATH, BODY | {"input": given}).json()).output_text == chat_text(llm)


def test_what_stands_before_the_conversation_is_one_system_message() -> None:
    items = [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    chat = ResponsesBody(input=items, instructions="Be brief.").as_chat()
    assert chat.messages == [{"role": "system", "content": "Be brief.\n\nBe kind."}, {"role": "user", "content": "Hi"}]


def test_calls_and_their_outputs_are_a_chats() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": "{}"}

    items = [
        {"role": "user", "content": "Greet both."},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Well."}]},
        *(call("a"), call("b")),
        {"type": "function_call_output", "call_id": "call_a", "output": "done"},
        {"type": "function_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "too"}]},
    ]
    messages = ResponsesBody(input=items).as_chat().messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["content"] == "Well."
    assert [each["id"] for each in messages[1]["tool_calls"]] == ["call_a", "call_b"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "a", "arguments": "{}"}
    assert messages[2:] == [
        {"role": "tool", "tool_call_id": "call_a", "content": "done"},
        {"role": "tool", "tool_call_id": "call_b", "content": "too"},
    ]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "greet"}])
def test_a_forced_call_is_an_item_streamed_or_not(llm: LLM, choice: Any) -> None:
    body = BODY | {"tools": [GREET], "tool_choice": choice, "max_output_tokens": 300}
    reply = Response.model_validate(post(llm, PATH, body).json())
    (item,) = reply.output
    assert item.type == "function_call"
    assert (reply.status, item.name, item.status) == ("completed", "greet", "completed")
    assert json.loads(item.arguments)["who"] in ("Ada", "Bob")
    events = streamed(llm, body)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        *("created", "in_progress", "output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert len(deltas) > 1
    assert "".join(deltas) == item.arguments
    assert events[-1]["response"]["output"][0]["arguments"] == item.arguments


def test_a_schema_shapes_the_text(llm: LLM) -> None:
    wanted = {"type": "json_schema", "name": "who", "schema": GREET["parameters"]}
    reply = post(llm, PATH, BODY | {"text": {"format": wanted}, "max_output_tokens": 300}).json()
    assert json.loads(reply["output"][0]["content"][0]["text"])["who"] in ("Ada", "Bob")
    assert reply["text"]["format"] == wanted


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"input": 3}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"input": [{"role": "user", "content": 3}]}, "input"),
        ({"input": [{"type": "function_call", "name": "a"}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "greet"}}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 99, "include": ["message.output_text.logprobs"]}, "top_logprobs"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text"),
        ({"text": {"format": {"type": "json_object"}}, "response_format": {"type": "json_object"}}, "text"),
        ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text"),
        ({"typical_p": 0.5}, "typical_p"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(llm: LLM, change: dict[str, Any], field: str) -> None:
    assert assert_openai_error(post(llm, PATH, BODY | change), 400)["param"] == field


def test_another_model_is_not_served(llm: LLM) -> None:
    assert_openai_error(post(llm, PATH, BODY | {"model": "other"}), 404)


def test_a_failure_ends_the_stream_with_its_reason(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_third_pass(llm, monkeypatch, MemoryError())
    *_, last = streamed(llm, BODY | {"speculation": {"off": True}})
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"


Work = Callable[[httpx.AsyncClient], Awaitable[Any]]


def test_openais_client_reads_a_conversation_of_two_turns(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> tuple[str, str]:
        first = Response.model_validate((await client.post(PATH, json=BODY)).json())
        said = [item.model_dump(mode="json") for item in first.output]
        items = [*CHAT, *said, {"role": "user", "content": "and then?"}]
        second = (await client.post(PATH, json=BODY | {"input": items})).json()
        return first.output_text, Response.model_validate(second).output_text

    first, second = ask(llm, work)
    turns = [*CHAT, {"role": "assistant", "content": first}, {"role": "user", "content": "and then?"}]
    assert second == chat_text(llm, turns)
