"""Fields that other servers' clients send, and that mean here what they mean there."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, GREEDY, ask, assert_openai_error, post

from headstart import LLM

SCHEMA = {"type": "object", "properties": {"ok": {"enum": [True]}}, "required": ["ok"]}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"n_predict": 5}, {"max_tokens": 5}),
        ({"max_new_tokens": 5, "min_new_tokens": 2}, {"max_tokens": 5, "min_tokens": 2}),
        ({"n_predict": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"repeat_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"repeat_penalty": 1.7, "repeat_last_n": 0}, {}),
        ({"logit_bias": [[70, 30.5], [71, False]]}, {"logit_bias": {"70": 30.5}}),
        (
            {"stop": ["x", *(f"never said {i}" for i in range(100))], "no_stop_trim": True},
            {"stop": "x", "include_stop_str_in_output": True},
        ),
        ({"temperature": 1.5, "top_p": 0, "seed": -1}, {"temperature": 0}),
    ],
)
def test_a_field_means_what_it_means_elsewhere(llm: LLM, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    start = {"prompt": "abc abc", "temperature": 0}

    async def work(client: httpx.AsyncClient) -> list[Any]:
        replies = [await client.post("/v1/completions", json=start | fields) for fields in (theirs, ours)]
        return [reply.json()["choices"][0] for reply in replies]

    said, expected = ask(llm, work)
    assert said == expected


@pytest.mark.parametrize("name", ["max_tokens", "n_predict"])
def test_minus_one_token_is_as_many_as_fit(llm: LLM, name: str) -> None:
    reply = post(llm, "/v1/completions", {"prompt": "abc", "temperature": 0, "ignore_eos": True, name: -1}).json()
    assert reply["usage"]["total_tokens"] == llm.engine.limits.max_context
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_fresh_seed_is_fresh(llm: LLM) -> None:
    body = {"prompt": "abc", "temperature": 2, "max_tokens": 30, "seed": -1}

    async def work(client: httpx.AsyncClient) -> set[str]:
        return {(await client.post("/v1/completions", json=body)).json()["choices"][0]["text"] for _ in range(2)}

    assert len(ask(llm, work)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"regex": r'\{"ok": true\}'},
    ],
)
def test_structures_go_by_the_names_of_llama_cpp_and_sglang(llm: LLM, fields: dict[str, Any]) -> None:
    pytest.importorskip("llguidance", reason="needs the extra 'structured'")
    reply = post(llm, "/v1/chat/completions", {"messages": CHAT, **GREEDY, "max_tokens": 100, **fields})
    assert json.loads(reply.json()["choices"][0]["message"]["content"]) == {"ok": True}


TOOL = {"type": "function", "name": "answer", "description": "Extracted.", "parameters": SCHEMA}
STRICT = {"name": "answer", "strict": True, "schema": SCHEMA}


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_forced_call_goes_before_a_format_of_the_text(llm: LLM, choice: str) -> None:
    """As instructor asks in its mode RESPONSES_TOOLS: the same schema as a tool, and as the format of the text."""
    pytest.importorskip("llguidance", reason="needs the extra 'structured'")
    function = {key: value for key, value in TOOL.items() if key != "type"}
    asked = {"type": "function", "name": "answer"} if choice == "named" else choice
    body = {
        "input": "hello",
        "tools": [TOOL],
        "tool_choice": asked,
        "text": {"format": {"type": "json_schema", **STRICT}},
        "max_output_tokens": 200,
        "temperature": 0,
    }
    (item,) = post(llm, "/v1/responses", body).json()["output"]
    assert (item["type"], json.loads(item["arguments"])) == ("function_call", {"ok": True})
    chat = {
        "messages": CHAT,
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "answer"}} if choice == "named" else choice,
        "response_format": {"type": "json_schema", "json_schema": STRICT},
        "max_completion_tokens": 200,
        "temperature": 0,
    }
    message = post(llm, "/v1/chat/completions", chat).json()["choices"][0]["message"]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"ok": True}
    refused = post(llm, "/v1/chat/completions", chat | {"response_format": None, "regex": "a"})
    assert assert_openai_error(refused, 400)["param"] == "tool_choice"
