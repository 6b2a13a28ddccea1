"""Every field of every route is given what nobody means: the server refuses it or answers, and goes on."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from thinning import thorough_but

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, ask
from tiny_speech import as_file, limit_tokens, make_speech_model, save_speech_model, sound

from headstart import LLM
from headstart.loading.model import load_model
from headstart_server.openapi import document

NUMBERS = [
    *(-(10**300), -(2**63), -1, -0.5, 0, 1e-320, 1e-300, 1e-45, 1e-38, 0.5, 1, 2, 2**31, 2**64),
    *(1e38, 3.4e38, 3.5e38, 1e300),
]
TEXTS = ["", "self", "\0", "a" * 70_000, "{", "1e400", "🙂" * 300, "{{ 1/0 }}", "\u202e<|im_end|>", "../../etc/passwd"]
LISTS: list[Any] = [[], [None], [[]], [{}], [-1], [2**70], [1e300], [""], ["a"] * 2000, list(range(2000))]
OBJECTS: list[Any] = [{}, {"self": 1}, {"type": {}}, {str(number): 1e38 for number in range(300)}]
HOSTILE: list[Any] = [None, True, False, *NUMBERS, *TEXTS, *LISTS, *OBJECTS]
NAMES = ("self", "cls", "type", "0", "-1", "9" * 5000, "", "__class__", "name", "messages", "tools", "bos_token")
NAMED: list[Any] = [{name: value} for name in NAMES for value in (1, 1e300, "x", None, {})]
"""For fields whose names a request chooses."""
OWN_NAMES = ("logit_bias", "chat_template_kwargs", "metadata")

GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": "a"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/lab/run": {"messages": CHAT},
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
INSIDE: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"logit_bias": {"1": None}},
        {"prompt": [1, None]},
        {"stop": [None]},
        {"prediction": {"type": "content", "content": None}},
    ],
    "/v1/chat/completions": [
        {"messages": [None]},
        {"messages": [{"role": None, "content": "a"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": None}, *CHAT]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": None}}]}, *CHAT]},
        {"tools": [None]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": None}}], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": None}}},
        {"chat_template_kwargs": {"add_generation_prompt": None}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": None}}},
        {"structured_outputs": {"json": None}},
        {"structured_outputs": {"regex": None}},
        {"structured_outputs": {"choice": None}},
        {"speculation": {"drafter": None}},
        {"speculation": {"draft_tokens": None}},
        {"speculation": {"tree_nodes": None}},
        {"logprobs": True, "top_logprobs": None},
        {"use_beam_search": True, "beam_width": None},
        {"use_beam_search": True, "length_penalty": None},
    ],
    "/v1/responses": [
        {"input": [None]},
        {"input": [{"role": "user", "content": None}]},
        {"input": [{"type": "function_call_output", "call_id": "1", "output": None}]},
        {"text": {"format": {"type": "json_schema", "schema": None}}},
        {"tools": [{"type": "function", "name": "f", "parameters": None}]},
        # Fields of chats that a response does not declare.
        *(
            {name: None}
            for name in ("messages", "documents", "echo", "max_completion_tokens", "logprobs", "add_generation_prompt")
        ),
    ],
}


@pytest.fixture(scope="module")
def llm(tiny_model_dir: Path) -> LLM:
    return LLM(load_model(tiny_model_dir, "fp32"), "suffix", more_drafters=["ngram"], max_context=64, tolerant=True)


def fields(path: str) -> Iterator[str]:
    """Of a route's body, by the document."""
    if path == "/lab/run":
        yield "messages"
        return
    described = document()
    schema = described["paths"][path]["post"]["requestBody"]
    (media,) = schema["content"].values()
    name = media["schema"]["$ref"].rpartition("/")[2]
    schemas = described["components"]["schemas"]
    known = [] if path == "/v1/completions" else schemas["CompletionBody"]["properties"]
    # What all routes share is tried with one of them.
    yield from (field for field in schemas[name]["properties"] if field not in known or field in GOOD[path])


def filled(template: Any, value: Any) -> Any:
    """``template`` with ``value`` in place of each None."""
    if isinstance(template, dict):
        return {name: filled(item, value) for name, item in template.items()}
    if isinstance(template, list):
        return [filled(item, value) for item in template]
    return value if template is None else template


def bodies(path: str) -> Iterator[dict[str, Any]]:
    small = {} if path in ("/tokenize", "/detokenize") else {"max_tokens": 2, "ignore_eos": None}
    good = GOOD[path] | small
    for name in fields(path):
        for value in (*HOSTILE, *(NAMED if name in OWN_NAMES else ())):
            yield good | {name: value}
    for template in INSIDE.get(path, ()):
        for value in HOSTILE:
            yield good | filled(template, value)
    for name in ("self", "cls", "body", "request", "model_config", "class", "messages", "__init__", "", "a.b"):
        yield good | {name: 1}


@pytest.mark.parametrize("path", thorough_but({"/v1/completions", "/lab/run"}, GOOD))
def test_no_value_of_any_field_is_the_servers_fault(path: str, llm: LLM) -> None:
    failed = list[tuple[int, str, str]]()

    async def work(client: httpx.AsyncClient) -> None:
        async def send(body: dict[str, Any]) -> None:
            text = json.dumps(body)
            reply = await client.post(path, content=text, headers={"content-type": "application/json"})
            streamed = reply.headers["content-type"].startswith("text/event-stream") and '"server_error"' in reply.text
            if reply.status_code not in (200, 400, 404, 413) or streamed:
                failed.append((reply.status_code, text[:300], reply.text[:300]))

        waiting = bodies(path)
        await asyncio.gather(*(_each(send, waiting) for _ in range(8)))
        good = GOOD[path] | ({} if "tokenize" in path else {"max_tokens": 2})
        assert (await client.post(path, json=good)).status_code == 200

    ask(llm, work)
    assert failed == []


async def _each(send: Any, waiting: Iterator[dict[str, Any]]) -> None:
    for body in waiting:
        await send(body)


@pytest.mark.thorough
def test_no_field_of_a_form_is_the_servers_fault(tmp_path: Path) -> None:
    model = load_model(limit_tokens(save_speech_model(make_speech_model(seed=5), tmp_path), 4), "fp32")
    forms = document()["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    names = [name for name in forms["multipart/form-data"]["schema"]["properties"] if name != "file"]
    speech, failed = as_file(sound(0.1)), list[tuple[int, str, Any]]()

    async def work(client: httpx.AsyncClient) -> None:
        for name in names:
            for value in (*NUMBERS, *TEXTS, math.nan, math.inf, "9" * 5000):
                given = {name: str(value)}
                reply = await client.post("/v1/audio/transcriptions", files={"file": ("a", speech)}, data=given)
                if reply.status_code not in (200, 400, 404):
                    failed.append((reply.status_code, name, value))

    ask(LLM(model, "none"), work)
    assert failed == []
