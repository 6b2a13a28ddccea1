"""Tool calls: found where the model chooses, enforced where it must."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")
pytest.importorskip("llguidance", reason="needs the extra 'structured'")

from serving import ask, events, post, streamed_calls
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model

from headstart import LLM
from headstart.loading.model import load_model


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": "does it", "parameters": schema}}


TOOLS = [tool("add", a={"type": "integer"}, b={"enum": [1, 2]}), tool("greet", who={"enum": ["Ada", "Bob"]})]
BODY = {"messages": [{"role": "user", "content": "hello"}], "tools": TOOLS, "max_tokens": 300, "temperature": 0}


@pytest.fixture
def llm(tiny_model_dir: Path) -> LLM:
    return LLM(load_model(tiny_model_dir, "fp32"), "suffix", prefix_caching=True, tolerant=True)


def test_a_named_function_gets_arguments_that_fit(llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "greet"}}
    (answer,) = post(llm, "/v1/chat/completions", BODY | {"tool_choice": choice}).json()["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert answer["message"]["content"] is None
    assert (answer["finish_reason"], call["type"], call["function"]["name"]) == ("stop", "function", "greet")
    assert json.loads(call["function"]["arguments"])["who"] in ("Ada", "Bob")
    assert call["id"].startswith("call_")


def test_a_required_call_is_one_of_the_tools_streamed_or_not(llm: LLM) -> None:
    body = BODY | {"tool_choice": "required", "parallel_tool_calls": False}

    async def work(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        whole = await client.post("/v1/chat/completions", json=body)
        return whole, await client.post("/v1/chat/completions", json=body | {"stream": True})

    whole, stream = ask(llm, work)
    (answer,) = whole.json()["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert answer["finish_reason"] == "tool_calls"
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "add":
        assert type(arguments["a"]) is int
        assert arguments["b"] in (1, 2)
    else:
        assert arguments["who"] in ("Ada", "Bob")
    deltas = [chunk["choices"][0]["delta"] for chunk in events(stream)]
    (streamed,) = streamed_calls(deltas)
    assert (streamed["index"], streamed["function"]) == (0, call["function"])
    assert not any(delta.get("content") for delta in deltas)
    assert events(stream)[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(("knows", "choice"), [(True, "auto"), (True, None), (True, "none"), (False, "auto")])
def test_a_call_that_the_model_chose_is_seen_where_it_may(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, knows: bool, choice: str | None
) -> None:
    said = '<tool_call>{"name": "greet", "arguments": {"who": "Ada"}}</tool_call>'
    monkeypatch.setattr(type(llm.model.chat_template), "knows_tools", knows)
    # The tiny model never says so by itself: an expression makes it.
    body = BODY | {"tool_choice": choice, "guided_choice": [said]}
    (answer,) = post(llm, "/v1/chat/completions", body).json()["choices"]
    if knows and choice != "none":
        assert answer["finish_reason"] == "tool_calls"
        assert answer["message"]["tool_calls"][0]["function"] == {"name": "greet", "arguments": '{"who": "Ada"}'}
    else:
        assert (answer["finish_reason"], answer["message"]["content"]) == ("stop", said)
        assert "tool_calls" not in answer["message"]


def test_tools_that_a_template_cannot_show_are_said_to_be_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "unshown").mkdir()
    llm = LLM(write_tiny_model(tmp_path / "unshown", head_dim=32), "none", precision="fp32")
    for choice in ("none", None, "auto", "auto"):
        assert post(llm, "/v1/chat/completions", BODY | {"tool_choice": choice, "max_tokens": 4}).status_code == 200
        told = [record.getMessage() for record in caplog.records if "does not show tools" in record.getMessage()]
        assert len(told) == (choice != "none")
    assert "unshown" in told[0]


@pytest.mark.parametrize("count", thorough_but([24], [24, 100]))
def test_many_calls_at_once_are_those_alone(tiny_model_dir: Path, count: int) -> None:
    """Sixteen at a time, of several tools and prompts, enforced and free, streamed or not."""
    llm = LLM(tiny_model_dir, "suffix", precision="fp32", prefix_caching=True, tolerant=True)
    bodies = [
        BODY
        | {
            "messages": [{"role": "user", "content": f"hello {number % 12}"}],
            "tool_choice": ["required", {"type": "function", "function": {"name": "greet"}}][number % 2],
            "parallel_tool_calls": number % 3 == 0,
            "max_tokens": 60,
            "seed": number % 12,
            "temperature": (number % 4) / 2,
            "stream": number % 12 % 5 == 0,
        }
        for number in range(count)
    ]

    async def said(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[Any, Any]:
        reply = await client.post("/v1/chat/completions", json=body)
        if not body["stream"]:
            (choice,) = reply.json()["choices"]
            called = [call["function"] for call in choice["message"].get("tool_calls", ())]
            return called, choice["finish_reason"]
        chunks = [chunk["choices"][0] for chunk in events(reply)]
        streamed = streamed_calls(chunk["delta"] for chunk in chunks)
        return [call["function"] for call in streamed], chunks[-1]["finish_reason"]

    async def work(client: httpx.AsyncClient) -> tuple[list[Any], list[Any]]:
        alone = [await said(client, body) for body in bodies[:12]]
        turns = asyncio.Semaphore(16)

        async def waiting(number: int) -> Any:
            async with turns:
                return await said(client, bodies[number])

        return alone, list(await asyncio.gather(*map(waiting, range(count))))

    alone, together = ask(llm, work)
    assert together == [alone[number % 12] for number in range(count)]
    assert any(calls for calls, _ in alone)


GREETS = '<tool_call>{"name": "greet", "arguments": {"who": "Ada"}}</tool_call>'


@pytest.mark.parametrize(
    ("said", "text", "count"),
    [
        (f"I greet. {GREETS} Done.", "I greet.  Done.", 1),
        (f"Hi {GREETS}\n{GREETS}\n", "Hi ", 2),
        (f"<think>{GREETS}?</think>{GREETS}", f"<think>{GREETS}?</think>", 1),
        (f"<tool_call>no</tool_call>{GREETS}", "<tool_call>no</tool_call>", 1),
        ("[1, 2]", "[1, 2]", 0),
        (GREETS, None, 1),
    ],
)
def test_a_streamed_answer_is_the_whole_one(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, said: str, text: str | None, count: int
) -> None:
    monkeypatch.setattr(type(llm.model.chat_template), "knows_tools", True)
    body = BODY | {"guided_choice": [said], "max_tokens": 400}
    items = {"input": "hello", "tools": [each["function"] | {"type": "function"} for each in TOOLS]}
    items |= {"guided_choice": [said], "max_output_tokens": 400, "temperature": 0}

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [
            await client.post(path, json=asked | {"stream": stream})
            for path, asked in (("/v1/chat/completions", body), ("/v1/responses", items))
            for stream in (False, True)
        ]

    whole, stream, response, told = ask(llm, work)
    (answer,) = whole.json()["choices"]
    called = [call["function"] for call in answer["message"].get("tool_calls", ())]
    assert (answer["message"]["content"], len(called)) == (text, count)
    assert answer["finish_reason"] == ("tool_calls" if count else "stop")
    chunks = [chunk["choices"][0] for chunk in events(stream)]
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == (text or "")
    streamed = streamed_calls(chunk["delta"] for chunk in chunks)
    assert [call["function"] for call in streamed] == called
    assert [call["index"] for call in streamed] == [*range(count)]
    assert chunks[-1]["finish_reason"] == answer["finish_reason"]
    last = json.loads(told.text.strip().split("\n")[-1].removeprefix("data: "))["response"]
    for output in (response.json()["output"], last["output"]):
        texts = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
        assert texts == ([] if text is None else [text])
        assert [item["name"] for item in output if item["type"] == "function_call"] == ["greet"] * count


def test_a_prompt_may_open_a_thought(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(llm.model.chat_template), "knows_tools", True)
    said = f"{GREETS}?</think>{GREETS}"
    messages = [*BODY["messages"], {"role": "assistant", "content": "<think>"}]
    body = BODY | {"messages": messages, "continue_final_message": True, "guided_choice": [said]}
    (answer,) = post(llm, "/v1/chat/completions", body).json()["choices"]
    assert answer["message"]["content"] == f"{GREETS}?</think>"
    assert len(answer["message"]["tool_calls"]) == 1


def test_a_call_cut_short_is_told_by_its_finish_reason(llm: LLM) -> None:
    (answer,) = post(llm, "/v1/chat/completions", BODY | {"tool_choice": "required", "max_tokens": 5}).json()["choices"]
    assert answer["finish_reason"] == "length"
    assert len(answer["message"]["content"]) == 5


def allowing(mode: str, *names: str) -> dict[str, Any]:
    named = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}


def test_some_of_the_tools_may_be_allowed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    (answer,) = post(llm, "/v1/chat/completions", BODY | {"tool_choice": allowing("required", "greet")}).json()[
        "choices"
    ]
    assert {call["function"]["name"] for call in answer["message"]["tool_calls"]} == {"greet"}
    said = '<tool_call>{"name": "greet", "arguments": {"who": "Ada"}}</tool_call>'
    monkeypatch.setattr(type(llm.model.chat_template), "knows_tools", True)
    for name in ("greet", "add"):
        body = BODY | {"tool_choice": allowing("auto", name), "guided_choice": [said]}
        (answer,) = post(llm, "/v1/chat/completions", body).json()["choices"]
        assert ("tool_calls" in answer["message"]) == (name == "greet")
    for names in ((), ("other",)):
        error = post(llm, "/v1/chat/completions", BODY | {"tool_choice": allowing("auto", *names)}).json()["error"]
        assert error["param"] == "tool_choice"


def test_of_several_calls_the_first_counts_where_they_may_not_be_parallel(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "".join(f'<tool_call>{{"name": "greet", "arguments": {{"who": "{who}"}}}}</tool_call>' for who in "AB")
    monkeypatch.setattr(type(llm.model.chat_template), "knows_tools", True)
    for parallel in (True, False):
        body = BODY | {"parallel_tool_calls": parallel, "guided_choice": [said]}
        (answer,) = post(llm, "/v1/chat/completions", body).json()["choices"]
        assert len(answer["message"]["tool_calls"]) == 1 + parallel


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_has_the_declared_arguments_and_no_others(tiny_model_dir: Path, choice: Any) -> None:
    """Tools seldom say ``additionalProperties``; a random model would invent names without end."""
    parameters = {
        "type": "object",
        "properties": {
            "unit": {"enum": ["c", "f"]},
            "where": {"type": "object", "properties": {"x": {"type": "boolean"}}},
        },
        "required": ["unit"],
    }
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    llm = LLM(load_model(tiny_model_dir, "fp32"), "suffix")
    body = {
        "messages": [{"role": "user", "content": "Is it warm?"}],
        "tools": [tool],
        "tool_choice": choice,
        "temperature": 1.5,
        "seed": 1,
        "n": 8,
        "max_tokens": 400,
    }
    for answered in post(llm, "/v1/chat/completions", body).json()["choices"]:
        assert answered["finish_reason"] in ("tool_calls", "stop")
        (call,) = answered["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert set(arguments) <= {"unit", "where"}
        assert set(arguments.get("where", {})) <= {"x"}


@pytest.mark.parametrize(
    ("reference", "extra"),
    [
        ("#/$defs/Place", {}),
        ("#/$defs/Place", {"$id": "https://example.org/weather"}),
        ("https://example.org/weather#/$defs/Place", {"$id": "https://example.org/weather"}),
        ("#/properties/kept/properties/$ref", {}),
    ],
)
def test_a_required_call_follows_its_own_schemas_references(llm: LLM, reference: str, extra: dict[str, Any]) -> None:
    """A function's parameters stand inside a larger schema then, where ``#`` would be another root."""
    place = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    kept = {"type": "object", "properties": {"$ref": place, "#": {"const": {"$ref": "#/none"}}}, "required": ["#"]}
    weather = {
        **extra,
        "type": "object",
        "$defs": {"Place": place},
        "properties": {"kept": kept, "where": {"$ref": reference}},
        "required": ["kept", "where"],
    }
    tools = [tool("other"), {"type": "function", "function": {"name": "weather", "parameters": weather}}]
    body = BODY | {"tools": tools, "tool_choice": allowing("required", "weather"), "max_tokens": 400}
    (answered,) = post(llm, "/v1/chat/completions", body).json()["choices"]
    arguments = json.loads(answered["message"]["tool_calls"][0]["function"]["arguments"])
    assert arguments["where"]["x"] in (1, 2)
    assert arguments["kept"]["#"] == {"$ref": "#/none"}


@pytest.mark.thorough
def test_a_required_call_may_hold_calls_of_its_own_kind(llm: LLM) -> None:
    """``#`` is the function's parameters, not the list of calls around them."""
    tree = {"type": "object", "properties": {"kid": {"anyOf": [{"$ref": "#"}, {"const": 1}]}}, "required": ["kid"]}
    tools = [{"type": "function", "function": {"name": "grow", "parameters": tree}}]
    body = BODY | {"tools": tools, "tool_choice": "required", "max_tokens": 400, "temperature": 1, "n": 8, "seed": 0}
    for answered in post(llm, "/v1/chat/completions", body).json()["choices"]:
        arguments = json.loads(answered["message"]["tool_calls"][0]["function"]["arguments"])
        while arguments != 1:
            assert arguments.keys() == {"kid"}
            arguments = arguments["kid"]


def test_a_call_that_breaks_off_in_a_stream_is_named_at_its_end(tiny_model_dir: Path) -> None:
    """It cannot be taken back; a client that has put it together learns that it is none."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}"
    llm = LLM(tiny_model_dir, "none", precision="fp32", chat_template=template, tool_parser="hermes")
    said = '<tool_call>{"name": "add", "arguments": {"a": 1, oh}}</tool_call>'
    body = BODY | {"tools": TOOLS[:1], "structured_outputs": {"choice": [said]}}

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return [await client.post("/v1/chat/completions", json=body | {"stream": stream}) for stream in (False, True)]

    whole, stream = ask(llm, work)
    (answer,) = whole.json()["choices"]
    assert (answer["message"]["content"], answer["finish_reason"]) == (said, "stop")
    assert "tool_calls" not in answer["message"]
    choices = [chunk["choices"][0] for chunk in events(stream)]
    (begun,) = streamed_calls(choice["delta"] for choice in choices)
    assert begun["function"]["arguments"].startswith('{"a": 1')
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == said
    assert (choices[-1]["finish_reason"], choices[-1]["broken_tool_calls"]) == ("stop", [0])
