"""Requests that are refused, in OpenAI's shape, and fields that ask for nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, GREEDY, ask, assert_openai_error, post

from headstart import LLM

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


BAD_COMPLETIONS: list[tuple[dict[str, Any], int]] = [
    ({"prompt": []}, 400),
    ({"prompt": [99999]}, 400),
    ({"prompt": [-1]}, 400),
    ({"prompt": [2**70]}, 400),
    ({"prompt": ["1"], "max_tokens": "12"}, 400),
    ({"stop_token_ids": [2**70]}, 400),
    ({"prompt": "a" * 600}, 400),
    ({"prompt": None}, 400),
    ({"prompt": "a\ud800"}, 400),
    ({"suffix": "end"}, 400),
    ({"allowed_token_ids": []}, 400),
    ({"allowed_token_ids": [-1]}, 400),
    ({"bad_words": [" "]}, 400),
    ({"bad_words": ["x" * 257]}, 400),
    ({"bad_words": ["x"] * 301}, 400),
    ({"truncate_prompt_tokens": 0}, 400),
    ({"truncate_prompt_tokens": -1, "max_tokens": 10_000}, 400),
    ({"prompt_logprobs": 21}, 400),
    ({"prompt_logprobs": 1, "stream": True}, 400),
    ({"use_beam_search": True, "temperature": 0.7}, 400),
    ({"use_beam_search": True, "guided_regex": "a+"}, 400),
    ({"no_repeat_ngram_size": -1}, 400),
    ({"beam_width": 2, "n": 3}, 400),
    ({"beam_width": 17}, 400),
    ({"beam_width": 2, "early_stopping": "perhaps"}, 400),
    ({"length_penalty": 2.0}, 400),
    ({"best_of": 3}, 400),
    ({"typical_p": 0.5}, 400),
    ({"n_predict": 7}, 400),
    ({"n_predict": "7", "max_tokens": None}, 400),
    ({"repeat_penalty": 1.2, "repetition_penalty": 1.1}, 400),
    ({"logit_bias": [["a", 1]]}, 400),
    ({"json_schema": {}, "regex": "a"}, 400),
    ({"n": 17}, 400),
    ({"n": 0}, 400),
    ({"n": -1}, 400),
    ({"logprobs": 21}, 400),
    ({"logprobs": -1}, 400),
    ({"prompt_logprobs": -1}, 400),
    ({"max_tokens": 0}, 400),
    ({"temperature": -1}, 400),
    ({"temperature": "NaN"}, 400),
    ({"top_p": 2}, 400),
    ({"seed": 2**70}, 400),
    ({"logit_bias": {"5000": 1}}, 400),
    ({"logit_bias": {"x": 1}}, 400),
    ({"logit_bias": {str(i): 1 for i in range(301)}}, 400),
    ({"stop": ["x"] * 1025}, 400),
    ({"stop": ["x" * 200] * 50}, 400),
    ({"stop": "x" * 257}, 400),
    ({"stop": [""]}, 400),
    ({"model": "other"}, 404),
    ({"model": "\ud800"}, 400),
    ({"speculation": {"drafter": "eagle"}}, 400),
    ({"speculation": {"verify": "guess"}}, 400),
    ({"speculation": {"draft_tokens": -1}}, 400),
    ({"speculation": {"enabled": False}}, 400),
    ({"cache_salt": "x" * 201}, 400),
]


def test_bad_requests_are_refused_in_openais_shape(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for changes, status in BAD_COMPLETIONS:
            # In ASCII: half of a surrogate pair has no other form.
            body = json.dumps({"prompt": "abc", **GREEDY, **changes})
            reply = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            assert_openai_error(reply, status)
        reply = await client.post("/v1/completions", json={"prompt": "abc", **GREEDY})
        assert reply.status_code == 200

    ask(llm, work)


def test_fields_of_other_servers_that_ask_for_nothing_are_ignored(llm: LLM) -> None:
    nothing = {"bad_words": [], "use_beam_search": False, "truncate_prompt_tokens": None, "user": "somebody"}
    nothing |= {"typical_p": 1.0, "mirostat": 0, "repeat_penalty": 1, "n_predict": -1}
    nothing |= {"context_shift": False, "n_keep": 4, "n_discard": 2}
    body = {"prompt": "abc abc", **GREEDY}
    texts = [
        post(llm, "/v1/completions", body | more).json()["choices"][0]["text"]
        for more in ({}, nothing, {"add_generation_prompt": True})
    ]
    assert texts[0] == texts[1] == texts[2]


BAD_CHATS: list[dict[str, Any]] = [
    {"functions": [{"name": "look_up"}]},
    {"add_generation_prompt": True, "continue_final_message": True},
    {"messages": []},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
    {"response_format": {"type": "xml"}},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
    {"response_format": {"type": "json_object"}, "guided_regex": "a"},
    {"response_format": {"type": "json_object"}, "ignore_eos": True},
    {"structured_outputs": {}},
    {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"guided_regex": "("},
    {"guided_regex": "a" * 70_000},
    {"guided_choice": []},
    {"guided_json": "{"},
    {"guided_choice": ["yes"], "min_tokens": 5, "max_tokens": 10},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": TOOLS},
    {"tool_choice": "required", "tools": TOOLS, "guided_regex": "a"},
    {"tool_choice": "required", "tools": TOOLS * 129},
    {"tools": [{"type": "function", "function": {"name": ""}}]},
    {"top_logprobs": 3},
    {"logprobs": True, "top_logprobs": -1},
]


def test_bad_chats_are_refused_in_openais_shape(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for changes in BAD_CHATS:
            body = {"messages": CHAT, **GREEDY, **changes}
            assert_openai_error(await client.post("/v1/chat/completions", json=body), 400)

    ask(llm, work)


@pytest.mark.parametrize(
    ("path", "body", "message", "field"),
    [
        ("completions", b"", "the body is not a JSON object; send one, with content-type application/json.", None),
        ("completions", b"[]", "the body is not a JSON object; send one, with content-type application/json.", None),
        ("completions", b'{"a" 1}', "the body is not JSON (Expecting ':' delimiter at character 5).", None),
        (
            "completions",
            b'{"prompt": [1, "a"]}',
            "prompt: It must be a text, a list of token ids, or a list of",
            "prompt",
        ),
        ("completions", b'{"prompt": "a", "stop": 1}', "stop: It must be a text or a list of texts.", "stop"),
        ("completions", b'{"prompt": "a", "n": "1"}', "n: Input should be a valid integer.", "n"),
        (
            "chat/completions",
            b'{"messages": [], "tool_choice": "any"}',
            "tool_choice: It must be none, auto",
            "tool_choice",
        ),
    ],
)
def test_a_complaint_names_the_field_and_what_it_may_be(
    llm: LLM, path: str, body: bytes, message: str, field: str | None
) -> None:
    headers = {"content-type": "application/json"}
    reply = ask(llm, lambda client: client.post(f"/v1/{path}", content=body, headers=headers))
    error = assert_openai_error(reply, 400)
    assert error["message"].startswith(message)
    assert error["param"] == field


def test_odd_bodies_and_paths_are_refused_in_openais_shape(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for body in (b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff"):
            reply = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            assert assert_openai_error(reply, 400)["message"].endswith(".")
        refused = assert_openai_error(await client.get("/v1/completions"), 405)
        assert refused["message"] == "GET /v1/completions is not served here; this path takes another method."
        refused = assert_openai_error(await client.post("/v1/images"), 404)
        assert refused["message"] == "POST /v1/images is not served here; GET /openapi.json says what is."

    ask(llm, work)
