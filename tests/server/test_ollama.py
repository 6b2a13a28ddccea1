"""Ollama's API over HTTP: the same answers as the other routes', as Ollama's own client reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("ollama", reason="needs the extra 'dev'")

import ollama
from serving import CHAT, SETTINGS, alive, ask, assert_empty, chat_text, post

from headstart import LLM
from headstart.loading.model import Model
from headstart_server.app import create_app
from headstart_server.ollama_protocol import OllamaChatBody, seconds
from headstart_server.settings import ServerSettings

OPTIONS = {"temperature": 0, "num_predict": 12}
BODY: dict[str, Any] = {"model": "tiny", "messages": CHAT, "options": OPTIONS}
SCHEMA = {"type": "object", "properties": {"ok": {"enum": [True]}}, "required": ["ok"], "additionalProperties": False}
Result = TypeVar("Result")


def with_client(
    llm: LLM, work: Callable[[Any], Awaitable[Result]], settings: ServerSettings = SETTINGS, **options: Any
) -> Result:
    """What ``work`` gets from Ollama's client."""

    async def run() -> Result:
        app = create_app(llm, settings)
        async with alive(app):
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            return await work(ollama.AsyncClient("http://localhost", transport=transport, **options))

    result = asyncio.run(run())
    assert_empty(llm)
    return result


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("application/x-ndjson")
    *told, rest = response.text.split("\n")
    assert rest == ""
    return [json.loads(line) for line in told]


def test_the_client_reads_a_chat_and_its_stream(llm: LLM) -> None:
    async def work(client: Any) -> tuple[Any, list[Any]]:
        whole = await client.chat(model="tiny", messages=CHAT, options=OPTIONS)
        stream = await client.chat(model="tiny:latest", messages=CHAT, options=OPTIONS, stream=True)
        return whole, [part async for part in stream]

    whole, parts = with_client(llm, work)
    assert whole.message.content == chat_text(llm) == "".join(part.message.content for part in parts)
    assert (whole.done_reason, whole.eval_count, whole.model) == ("length", 12, "tiny")
    assert whole.prompt_eval_count == len(llm.encode_chat(CHAT).token_ids)
    assert 0 < whole.prompt_eval_duration <= whole.total_duration
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert len(parts) > 2


def test_a_stream_is_what_is_left_out(llm: LLM) -> None:
    assert lines(post(llm, "/api/chat", BODY))[-1]["done"] is True
    assert post(llm, "/api/chat", BODY | {"stream": False}).json()["message"]["content"] == chat_text(llm)


def test_a_prompt_is_a_chat_and_goes_on_from_its_context(llm: LLM) -> None:
    async def work(client: Any) -> tuple[Any, Any, Any]:
        asked = {"model": "tiny", "options": OPTIONS}
        first = await client.generate(prompt="hello there", **asked)
        second = await client.generate(prompt="and then?", context=first.context, **asked)
        system = await client.generate(prompt="hello there", system="Be kind.", **asked)
        return first, second, system

    first, second, system = with_client(llm, work)
    assert first.response == chat_text(llm)
    assert system.response == chat_text(llm, [{"role": "system", "content": "Be kind."}, *CHAT])
    again = llm.encode_chat([{"role": "user", "content": "and then?"}]).token_ids
    prompt = [*first.context, *again]
    assert second.context[: len(prompt)] == prompt
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 12}
    assert second.response == post(llm, "/v1/completions", body).json()["choices"][0]["text"]


def test_a_raw_prompt_is_continued(llm: LLM) -> None:
    reply = post(llm, "/api/generate", {"prompt": "abc abc", "raw": True, "options": OPTIONS, "stream": False}).json()
    body = {"prompt": "abc abc", "temperature": 0, "max_tokens": 12}
    assert reply["response"] == post(llm, "/v1/completions", body).json()["choices"][0]["text"]
    assert "context" not in reply


def test_options_mean_what_they_mean_elsewhere() -> None:
    given = {
        "num_predict": 5.0,
        "top_k": 40.0,
        "seed": 3,
        "stop": ["x"],
        "repeat_penalty": 1.5,
        "num_ctx": 4096,
        "temperature": 1,
        "min_p": 0.1,
        "num_gpu": 9,
        "top_p": None,
    }
    chat = OllamaChatBody(messages=CHAT, options=given, think="high").as_chat()
    assert (chat.max_tokens, chat.top_k, chat.seed, chat.stop, chat.repetition_penalty) == (5, 40, 3, ["x"], 1.5)
    assert (chat.temperature, chat.min_p, chat.top_p) == (1, 0.1, None)
    assert chat.chat_template_kwargs == {"enable_thinking": True, "reasoning_effort": "high"}
    assert OllamaChatBody(messages=CHAT, options={"num_predict": -2}).as_chat().max_tokens == -1


@pytest.mark.parametrize(("path", "asked"), [("/api/chat", {"messages": CHAT}), ("/api/generate", {"prompt": "hello"})])
def test_a_context_bounds_prompt_and_answer(llm: LLM, path: str, asked: dict[str, Any]) -> None:
    def said(**options: int) -> dict[str, Any]:
        reply: dict[str, Any] = post(llm, path, asked | {"stream": False, "options": OPTIONS | options}).json()
        return reply

    whole = said(num_ctx=1 << 20)
    prompt = whole["prompt_eval_count"]
    bounded = said(num_ctx=prompt + 5, num_predict=-1)
    assert (whole["eval_count"], bounded["eval_count"], bounded["done_reason"]) == (12, 5, "length")
    assert said(num_ctx=prompt + 5, num_predict=3)["eval_count"] == 3


@pytest.mark.parametrize("form", ["json", SCHEMA])
def test_a_format_shapes_the_text(llm: LLM, form: Any) -> None:
    async def work(client: Any) -> Any:
        asked = {"format": form, "options": OPTIONS | {"num_predict": 300}}
        chat = await client.chat(model="tiny", messages=CHAT, **asked)
        text = await client.generate(model="tiny", prompt="hello", **asked)
        return chat.message.content, text.response

    for text in with_client(llm, work):
        assert isinstance(json.loads(text) if form != "json" else {}, dict)
        assert text.lstrip().startswith("{")


def test_calls_are_objects_streamed_or_not(llm: LLM) -> None:
    function = {"name": "answer", "description": "does it", "parameters": SCHEMA}
    body = BODY | {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    body["options"] = OPTIONS | {"num_predict": 300}
    whole = post(llm, "/api/chat", body | {"stream": False}).json()
    (call,) = whole["message"]["tool_calls"]
    assert call["function"] == {"index": 0, "name": "answer", "arguments": {"ok": True}}
    assert ollama.ChatResponse(**whole).message.tool_calls[0].function.arguments == {"ok": True}
    told = [call for line in lines(post(llm, "/api/chat", body)) for call in line["message"].get("tool_calls", ())]
    assert [each["function"] for each in told] == [call["function"]]


def test_a_thought_is_told_apart_streamed_or_not(model: Model) -> None:
    llm = LLM(model, "suffix", reasoning_parser="qwen3", tolerant=True)
    body = {
        "messages": [*CHAT, {"role": "assistant", "content": "<think>\nWell,"}],
        "continue_final_message": True,
        "thinking_token_budget": 10,
        "structured_outputs": {"choice": ["It is 1."]},
        "options": OPTIONS | {"num_predict": 300},
    }
    message = post(llm, "/api/chat", body | {"stream": False}).json()["message"]
    assert message["content"] == "It is 1."
    assert 0 < len(message["thinking"]) <= 10
    told = [line["message"] for line in lines(post(llm, "/api/chat", body))]
    assert "".join(each.get("thinking", "") for each in told) == message["thinking"]
    assert "".join(each["content"] for each in told) == "It is 1."


def test_history_of_tools_is_a_chats() -> None:
    call = {"function": {"name": "answer", "arguments": {"ok": True}}}
    body = OllamaChatBody(
        messages=[
            *CHAT,
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call]},
            {"role": "tool", "tool_name": "answer", "content": "done"},
        ]
    )
    told = body.as_chat().messages
    assert told[1]["tool_calls"][0]["function"] == {"name": "answer", "arguments": '{"ok": true}'}
    assert told[1]["reasoning_content"] == "Hm."
    assert told[2] == {"role": "tool", "name": "answer", "content": "done"}


def test_log_probabilities_come_with_the_text(llm: LLM) -> None:
    told = lines(post(llm, "/api/chat", BODY | {"logprobs": True, "top_logprobs": 2}))
    entries = [entry for line in told for entry in line.get("logprobs", ())]
    assert len(entries) == 12
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_models_are_listed_and_shown(llm: LLM) -> None:
    async def work(client: Any) -> tuple[Any, Any, Any]:
        return await client.list(), await client.ps(), await client.show("tiny")

    listed, running, shown = with_client(llm, work)
    assert [each.model for each in listed.models] == [each.model for each in running.models] == ["tiny"]
    assert listed.models[0].details.family == "llama"
    assert (listed.models[0].size > 0, len(listed.models[0].digest)) == (True, 64)
    assert running.models[0].context_length == llm.engine.limits.max_context
    assert shown.modelinfo["llama.context_length"] == 512
    assert (shown.capabilities, shown.template) == (["completion"], llm.model.chat_template.default)


def test_open_webui_finds_what_it_asks_for(llm: LLM) -> None:
    """Its calls, in their order: is it there, what is there, a chat with all that its interface can set."""

    async def work(client: httpx.AsyncClient) -> None:
        assert tuple(map(int, (await client.get("/api/version")).json()["version"].split("."))) >= (0, 6, 4)
        for path in ("/api/tags", "/api/ps", "/v1/models"):
            assert (await client.get(path)).status_code == 200
        assert (await client.post("/api/show", json={"name": "tiny"})).status_code == 200
        body = BODY | {
            "options": OPTIONS | {"num_ctx": 2048, "num_keep": 24, "mirostat": 0, "tfs_z": 1, "use_mmap": True},
            "keep_alive": "5m",
            "stream": True,
            "metadata": {"chat_id": "x"},
            "session_id": "y",
        }
        assert lines(await client.post("/api/chat", json=body))[-1]["done_reason"] == "length"
        embedded = await client.post("/api/embed", json={"model": "tiny", "input": "a"})
        assert (embedded.status_code, "embeddings are not made here" in embedded.json()["error"]) == (404, True)
        for path in ("/api/chat", "/api/generate"):
            loaded = (await client.post(path, json={"model": "tiny", "keep_alive": -1})).json()
            assert (loaded["done"], loaded["done_reason"]) == (True, "load")

    ask(llm, work)


@pytest.mark.parametrize(
    ("path", "change", "said"),
    [
        ("/api/chat", {"options": {"temperature": "hot"}}, "options.temperature"),
        ("/api/chat", {"options": {"num_predict": 1.5}}, "options.num_predict"),
        ("/api/chat", {"options": {"num_ctx": "many"}}, "options.num_ctx is 'many'; give a number of tokens"),
        ("/api/chat", {"options": {"num_ctx": 0}}, "options.num_ctx is 0; give a number of tokens"),
        ("/api/chat", {"options": {"num_ctx": 3}}, "tokens, but options.num_ctx is 3; raise it"),
        ("/api/generate", {"options": {"num_ctx": 1.0}}, "tokens, but options.num_ctx is 1; raise it"),
        ("/api/generate", {"raw": True, "options": {"num_ctx": 1}}, "tokens, but options.num_ctx is 1; raise it"),
        ("/api/chat", {"options": {"mirostat": 2}}, "mirostat"),
        ("/api/chat", {"options": 3}, "options"),
        ("/api/chat", {"format": "xml"}, "format"),
        ("/api/chat", {"format": {"not": {}}}, "structured_outputs"),
        ("/api/chat", {"keep_alive": "soon"}, "keep_alive"),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "images"),
        ("/api/chat", {"messages": [{"content": "a"}]}, "role"),
        ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool call"),
        ("/api/chat", {"tools": [{"type": "function"}]}, "tools"),
        ("/api/generate", {"images": ["x"]}, "images"),
        ("/api/generate", {"template": "x"}, "template"),
        ("/api/generate", {"raw": True, "system": "x"}, "raw"),
        ("/api/generate", {"context": [10**6]}, "token"),
        ("/api/generate", {"suffix": "x"}, "suffix"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_ollamas_form(
    llm: LLM, path: str, change: dict[str, Any], said: str
) -> None:
    body = (BODY if path == "/api/chat" else {"prompt": "a"}) | change
    reply = post(llm, path, body)
    assert (reply.status_code, list(reply.json())) == (400, ["error"])
    assert said in reply.json()["error"]


def test_the_client_raises_its_own_errors_and_sends_a_key(llm: LLM) -> None:
    settings = ServerSettings("tiny", api_keys=("secret",))

    async def work(client: Any) -> None:
        with pytest.raises(ollama.ResponseError, match="is not served here") as caught:
            await client.chat(model="other", messages=CHAT)
        assert caught.value.status_code == 404
        with pytest.raises(ollama.ResponseError, match="not managed"):
            await client.pull("other")

    with_client(llm, work, settings, headers={"authorization": "Bearer secret"})

    async def locked_out(client: Any) -> None:
        with pytest.raises(ollama.ResponseError, match="API key"):
            await client.list()

    with_client(llm, locked_out, settings)


@pytest.mark.parametrize(
    ("given", "meant"),
    [(5, 5), (0, 0), (-1, float("inf")), ("5m", 300), ("1h30m", 5400), ("-1", float("inf")), ("-1m", float("inf")),
     ("300", 300), ("1.5s", 1.5), ("250ms", 0.25), (None, None)],
)  # fmt: skip
def test_times_are_written_as_in_go(given: Any, meant: float | None) -> None:
    assert seconds(given) == meant
