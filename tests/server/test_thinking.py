"""Thoughts on the routes: told apart, counted, bounded, and given back in the conversation."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from serving import ask, events, post

from headstart import LLM
from headstart.engine.outputs import FinishReason
from headstart.loading.model import Model
from headstart.text.answers.events import Arguments, CallBegun, CallBroken, CallEnded, Text, Thought
from headstart.text.chat import ChatTemplate
from headstart_server.response_events import ResponseEvents
from headstart_server.responses_protocol import ResponsesBody

STOP = FinishReason.STOP
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, "temperature": 0}


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", reasoning_parser="qwen3", tolerant=True)


def test_a_thought_is_told_apart_and_counted_streamed_or_not(llm: LLM) -> None:
    # An unguided model would not say so; no thought is expected where the prompt shows that one is over.
    messages = [*BODY["messages"], {"role": "assistant", "content": "<think>\nWell,"}]
    body = BODY | {"messages": messages, "continue_final_message": True, "thinking_token_budget": 10}
    body |= {"structured_outputs": {"choice": ["It is 1."]}}

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        asked = [body, body | {"stream": True, "stream_options": {"include_usage": True}}]
        return [await client.post(CHAT, json=each) for each in (*asked, body | {"include_reasoning": False})]

    whole, stream, silent = ask(llm, work)
    reply = whole.json()
    message = reply["choices"][0]["message"]
    assert message["content"] == "It is 1."
    assert message["reasoning_content"] == message["reasoning"]
    assert 0 < len(message["reasoning"]) <= 10
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10
    *chunks, last = events(stream)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == message["reasoning"]
    assert "".join(delta["content"] or "" for delta in deltas) == "It is 1."
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10
    quiet = silent.json()
    assert quiet["choices"][0]["message"] == {"role": "assistant", "content": "It is 1.", "refusal": None}
    assert quiet["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10


def test_thoughts_are_items_of_responses() -> None:
    counts = {
        "prompt_tokens": 1,
        "completion_tokens": 9,
        "total_tokens": 10,
        "speculation": {},
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    parts = [
        Thought("We"),
        Thought("ll."),
        Text("I look."),
        CallBegun(0, "c", "f"),
        Arguments(0, "{"),
        Arguments(0, "}"),
    ]
    parts += [CallBroken(0), Text(" Oh."), CallBegun(1, "d", "f"), Arguments(1, "{}"), CallEnded(1)]
    told = ResponseEvents({"id": "r"}, tells_thoughts=True)
    sent = [*told.begin(), *[line for part in parts for line in told.say([part], [])], *told.end(STOP, counts)]
    events = [json.loads(line.split("data: ")[1]) for line in sent]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    thought, message, call = events[-1]["response"]["output"]
    assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "Well."}])
    assert (message["content"][0]["text"], message["status"]) == ("I look. Oh.", "completed")
    assert (call["call_id"], call["arguments"], call["status"]) == ("d", "{}", "completed")
    assert [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"] == ["We", "ll."]
    assert events[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    silent = ResponseEvents({"id": "r"}, tells_thoughts=False)
    assert [*silent.say(parts[:2], [])] == []
    assert [item["type"] for item in silent.finished(STOP, counts)["output"]] == ["message"]


def test_a_conversation_may_hold_thoughts() -> None:
    template = ChatTemplate(
        "{% for m in messages %}[{{ m.role }}|{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}"
    )
    for name in ("reasoning_content", "reasoning", "thinking"):
        rendered = template.render([{"role": "assistant", "content": None, name: "Hm."}])
        assert rendered == "[assistant|Hm.|]"
    items = [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"role": "assistant", "content": "It is 1."},
    ]
    chat = ResponsesBody.model_validate({"input": items, "reasoning": {"effort": "low"}}).as_chat()
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[1]["reasoning_content"] == "Hm."
    assert chat.messages[1]["tool_calls"][0]["id"] == "c"
    assert chat.template_variables() == {"reasoning_effort": "low"}


def test_effort_and_switches_reach_the_template(llm: LLM) -> None:
    refused = post(llm, CHAT, BODY | {"thinking_token_budget": -1})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "thinking_token_budget"
