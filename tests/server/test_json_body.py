"""Bodies that hold what no request can mean: each is answered with one sentence that names the field."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, ask, assert_openai_error

from headstart import LLM, RequestError, SamplingParams, SpeculationParams, StructuredOutputsParams
from headstart_server.json_body import MAX_DEPTH, read_json

HALF = "a\ud800b"
FUNCTION = {"name": "f", "description": HALF, "parameters": {"type": "object", "properties": {"x": {"const": HALF}}}}
PLACES: list[tuple[str, dict[str, Any], str]] = [
    ("completions", {"prompt": HALF}, "prompt"),
    ("completions", {"prompt": ["fine", HALF]}, "prompt.1"),
    ("completions", {"prompt": "a", "suffix": HALF}, "suffix"),
    ("completions", {"prompt": "a", "stop": ["x", HALF]}, "stop.1"),
    ("completions", {"prompt": "a", "bad_words": [HALF]}, "bad_words.0"),
    ("completions", {"prompt": "a", "user": HALF}, "user"),
    ("completions", {"prompt": "a", "cache_salt": HALF}, "cache_salt"),
    ("completions", {"prompt": "a", "model": HALF}, "model"),
    ("completions", {"prompt": "a", "unknown": {"deep": [HALF]}}, "unknown.deep.0"),
    ("completions", {"prompt": "a", "guided_regex": HALF}, "guided_regex"),
    ("completions", {"prompt": "a", "guided_choice": [HALF]}, "guided_choice.0"),
    ("completions", {"prompt": "a", "prediction": {"type": "content", "content": HALF}}, "prediction.content"),
    ("completions", {"prompt": "a", "speculation": {"drafter": HALF}}, "speculation.drafter"),
    ("completions", {"prompt": "a", "logit_bias": {HALF: 1}}, "logit_bias"),
    ("completions", {"prompt": "a", HALF: 1}, "the body"),
    ("chat/completions", {"messages": [{"role": "user", "content": HALF}]}, "messages.0.content"),
    ("chat/completions", {"messages": [{"role": HALF, "content": "x"}]}, "messages.0.role"),
    ("chat/completions", {"messages": [*CHAT, {"role": "user", "content": "x", "name": HALF}]}, "messages.1.name"),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
        "messages.0.content.0.text",
    ),
    ("chat/completions", {"messages": CHAT, "documents": [{"text": HALF}]}, "documents.0.text"),
    ("chat/completions", {"messages": CHAT, "chat_template_kwargs": {"x": HALF}}, "chat_template_kwargs.x"),
    (
        "chat/completions",
        {"messages": CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": HALF}}}},
        "response_format.json_schema.schema.const",
    ),
    ("responses", {"input": HALF}, "input"),
    ("responses", {"input": "a", "instructions": HALF}, "instructions"),
    ("responses", {"input": "a", "metadata": {"x": HALF}}, "metadata.x"),
]


def test_half_a_surrogate_pair_is_refused_wherever_it_stands(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for route, body, field in PLACES:
            # In ASCII, and as the bytes that some encoders write.
            for data in (
                json.dumps(body).encode(),
                json.dumps(body, ensure_ascii=False).encode(errors="surrogatepass"),
            ):
                reply = await client.post(f"/v1/{route}", content=data, headers={"content-type": "application/json"})
                error = assert_openai_error(reply, 400)
                assert "UTF-8" in error["message"]
            if field != "the body":
                reply = await client.post(f"/v1/{route}", content=json.dumps(body), headers=JSON)
                assert reply.json()["error"]["param"] == field
                assert reply.json()["error"]["message"].startswith(f"{field} cannot be written as UTF-8")
        tools = [{"type": "function", "function": FUNCTION}]
        for choice in ("auto", "required"):
            body = {"messages": CHAT, "tools": tools, "tool_choice": choice}
            reply = await client.post("/v1/chat/completions", content=json.dumps(body), headers=JSON)
            assert assert_openai_error(reply, 400)["param"].startswith("tools.0.function")
        # JSON inside a text is read later than the body is.
        hidden = json.dumps({"const": HALF})
        for body in ({"guided_json": hidden}, {"structured_outputs": {"json": hidden}}):
            reply = await client.post("/v1/completions", json={"prompt": "a"} | body)
            assert "UTF-8" in assert_openai_error(reply, 400)["message"]
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": HALF})}}
        said = [*CHAT, {"role": "assistant", "tool_calls": [call]}]
        assert (await client.post("/v1/chat/completions", json={"messages": said})).status_code in (200, 400)
        for path in ("/v1/models/%ED%A0%80", "/v1/models/%00", "/%ED%A0%80?x=%FF"):
            assert_openai_error(await client.get(path), 404)
        for path in ("/tokenize", "/v1/completions"):
            reply = await client.post(path, content=json.dumps({"prompt": HALF}), headers=JSON)
            assert assert_openai_error(reply, 400)["param"] == "prompt"

    ask(llm, work)


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN"),
        (b'{"prompt": "a", "temperature": -Infinity}', "Infinity"),
        (b'{"prompt": "a", "temperature": 1e999}', "1e999"),
        (b'{"prompt": "a", "temperature": 1' + b"0" * 400 + b"}", "401 digits"),
        (b'{"prompt": "a", "max_tokens": 1' + b"0" * 5000 + b"}", "5001 digits"),
        (b'{"prompt": "a", "temperature": 1, "temperature": 0}', "temperature is given twice"),
        (b'{"prompt": "a", "x": ' + b"[" * 200 + b"]" * 200 + b"}", "levels deep"),
        (b'{"prompt": "a", "x": ' + b'{"x":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "levels deep"),
        (b"[" * 100_000, "levels deep"),
        (b'{"prompt": "a", "x": [' + b"[]," * 70_000 + b"1]}", "70002 lists and objects"),
        (b'"' + rb"\"" * 1_000_000, "not JSON"),
        (b'{"x": ' + (b"1" * 308 + b".") * 6000, "not JSON"),
        (
            b'{"prompt": "a", "logit_bias": {' + b", ".join(b'"%d": ""' % i for i in range(50_000)) + b"}}",
            "50000 entries",
        ),
        (b'{"prompt": "a", "allowed_token_ids": [' + b'"",' * 600_000 + b"1]}", "allowed_token_ids.0"),
        (b'{"prompt": [' + b"1.5," * 500_000 + b"1]}", "prompt: It must be a text"),
        (b'{"prompt": "a", "' + b"n" * 1_000_000 + b'": {"x": "' + rb"\ud800" + b'"}}', "UTF-8"),
        (b'{"prompt": "a"', "not JSON"),
        (b'"prompt"', "not a JSON object"),
    ],
)
def test_what_is_not_quite_json_is_refused(llm: LLM, data: bytes, complaint: str) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/completions", content=data, headers=JSON)

    assert complaint in assert_openai_error(ask(llm, work), 400)["message"]


def test_what_is_json_is_read() -> None:
    assert read_json(b"\xef\xbb\xbf" + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    assert read_json('{"a": "\\ud83d\\ude00", "b": "😀\\u0000", "c": [1, -2.5e3, true, null]}'.encode()) == {
        "a": "😀",
        "b": "😀\0",
        "c": [1, -2500.0, True, None],
    }


def test_the_library_refuses_half_a_surrogate_pair_by_its_fields_name(llm: LLM) -> None:
    asked = {
        "prompt": lambda: llm.generate(HALF),
        "messages": lambda: llm.chat([{"role": "user", "content": HALF}]),
        "tools": lambda: llm.chat(CHAT, tools=[{"type": "function", "function": FUNCTION}]),
        "prediction": lambda: llm.generate("a", speculation=SpeculationParams(prediction=HALF)),
        "cache_salt": lambda: llm.samples(llm.encode("a"), SamplingParams(), cache_salt=HALF),
        "stop": lambda: SamplingParams(stop=(HALF,)),
        "bad_words": lambda: SamplingParams(bad_words=(HALF,)),
        "structured_outputs": lambda: StructuredOutputsParams(regex=HALF),
    }
    for field, call in asked.items():
        with pytest.raises(RequestError, match="cannot be written as UTF-8") as caught:
            call()
        assert (caught.value.field or "").startswith(field)
    for structure in ({"choice": (HALF,)}, {"json": {"const": HALF}}, {"json": json.dumps({"const": HALF})}):
        with pytest.raises(RequestError, match="cannot be written as UTF-8"):
            StructuredOutputsParams(**structure)
