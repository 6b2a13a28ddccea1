"""Completions and chats over HTTP: what is answered, and how a request shapes it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, GREEDY, ask, assert_openai_error, events, post

from headstart import LLM, RequestError, SamplingParams, StructuredOutputsParams
from headstart.loading.model import Model
from headstart.text.chat import ChatTemplate


def test_a_completion_is_what_the_library_says(llm: LLM, plain: LLM) -> None:
    reply = post(llm, "/v1/completions", {"model": "tiny", "prompt": "abc abc", **GREEDY}).json()
    (expected,) = plain.generate("abc abc", SamplingParams(temperature=0, max_tokens=12))
    (choice,) = reply["choices"]
    assert choice["text"] == expected.text
    assert choice["finish_reason"] == "length"
    assert reply["object"] == "text_completion"
    usage = reply["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 12, 19)
    counts = usage["speculation"]
    assert counts["drafter"] == "suffix"
    assert counts["accepted"] == sum(counts["accepted_per_position"]) == 12 - counts["rounds"]
    assert counts["accepted"] <= counts["drafted"]


def test_prompts_and_samples_come_in_order(llm: LLM, plain: LLM) -> None:
    body = {"prompt": ["abc", "xyz"], "n": 2, "seed": 5, "temperature": 1.0, "max_tokens": 8}
    choices = post(llm, "/v1/completions", body | {"speculation": {"verify": "coupled"}}).json()["choices"]
    params = SamplingParams(temperature=1.0, max_tokens=8, seed=5, n=2)
    expected = [c.text for output in plain.generate(["abc", "xyz"], params) for c in output.outputs]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"] for choice in choices] == expected
    by_ids = post(llm, "/v1/completions", {"prompt": plain.encode("abc").token_ids, **GREEDY}).json()
    by_text = post(llm, "/v1/completions", {"prompt": "abc", **GREEDY}).json()
    assert by_ids["choices"] == by_text["choices"]


def test_stop_strings_end_an_answer(llm: LLM) -> None:
    text = post(llm, "/v1/completions", {"prompt": "abc", **GREEDY}).json()["choices"][0]["text"]
    (choice,) = post(llm, "/v1/completions", {"prompt": "abc", **GREEDY, "stop": [text[4:6]]}).json()["choices"]
    assert choice["text"] == text[: text.index(text[4:6])]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", text[4:6])


@pytest.mark.parametrize(
    ("wish", "drafter"),
    [
        ({}, "suffix"),
        ({"drafter": "ngram", "draft_tokens": 2}, "ngram"),
        ({"drafter": "random", "verify": "block"}, "random"),
        ({"off": True}, None),
    ],
)
def test_a_request_chooses_how_it_is_drafted(llm: LLM, wish: dict[str, Any], drafter: str | None) -> None:
    body = {"prompt": "abab abab", **GREEDY, "max_tokens": 40}
    reply = post(llm, "/v1/completions", body | {"speculation": wish}).json()
    counts = reply["usage"]["speculation"]
    assert counts["drafter"] == drafter
    assert (counts["drafted"] > 0) == (drafter is not None)
    assert reply["choices"][0]["text"] == post(llm, "/v1/completions", body).json()["choices"][0]["text"]
    if "draft_tokens" in wish:
        assert len(counts["drafted_per_position"]) <= 2


def test_only_allowed_tokens_are_said(llm: LLM) -> None:
    allowed = llm.model.tokenizer.encode("xyz")
    body = {"prompt": "abc abc", "max_tokens": 12, "temperature": 1, "allowed_token_ids": allowed, "ignore_eos": True}
    said = post(llm, "/v1/completions", body).json()["choices"][0]["text"]
    assert len(said) == 12
    assert set(said) <= set("xyz")


def test_the_template_is_told_what_the_request_says(model: Model) -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ mood }}")
    llm = LLM(replace(model, chat_template=template), "suffix", tolerant=True)
    body = {"messages": CHAT, **GREEDY}
    sizes = [
        post(llm, "/v1/chat/completions", body | {"chat_template_kwargs": more}).json()["usage"]["prompt_tokens"]
        for more in (None, {"mood": "calm"})
    ]
    assert sizes[1] > sizes[0]
    reply = post(llm, "/v1/chat/completions", body | {"chat_template_kwargs": {"messages": []}})
    assert "leave it out" in assert_openai_error(reply, 400)["message"]


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}, "ok"),
        ({"guided_json": SCHEMA}, "ok"),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "ok"),
        ({"response_format": {"type": "json_object"}}, "object"),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
    ],
)
def test_structured_outputs_in_the_words_of_openai_and_vllm(llm: LLM, fields: dict[str, Any], pattern: str) -> None:
    pytest.importorskip("llguidance", reason="needs the extra 'structured'")
    body = {"max_tokens": 200, "seed": 5, "temperature": 1.0, **fields}

    async def work(client: httpx.AsyncClient) -> tuple[str, str, str]:
        chat, free, completion = await asyncio.gather(
            client.post("/v1/chat/completions", json={"messages": CHAT, **body}),
            client.post("/v1/completions", json={"prompt": "abc", **GREEDY}),
            client.post("/v1/completions", json={"prompt": "abc", **body}),
        )
        return (
            chat.json()["choices"][0]["message"]["content"],
            free.json()["choices"][0]["text"],
            completion.json()["choices"][0]["text"],
        )

    chat, free, completion = ask(llm, work)
    assert free == llm.generate("abc", SamplingParams(temperature=0, max_tokens=12))[0].text
    for text in (chat, completion):
        if pattern == "ok":
            assert type(json.loads(text)["ok"]) is bool
        elif pattern == "object":
            assert text.lstrip().startswith("{")
        else:
            assert re.fullmatch(pattern, text)


def test_openais_own_client_is_understood(llm: LLM) -> None:
    openai = pytest.importorskip("openai")

    async def work(client: httpx.AsyncClient) -> tuple[Any, list[Any], str]:
        asker = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=client, max_retries=0)
        options = {"model": "tiny", "messages": CHAT, "temperature": 0, "max_tokens": 12}
        whole = await asker.chat.completions.create(**options, logprobs=True, top_logprobs=2)
        stream = await asker.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}, extra_body={"speculation": {"off": True}}
        )
        chunks = [chunk async for chunk in stream]
        with pytest.raises(openai.BadRequestError) as refused:
            await asker.completions.create(model="tiny", prompt="a", suffix="b")
        return whole, chunks, refused.value.message

    whole, chunks, message = ask(llm, work)
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == len(whole.choices[0].logprobs.content)
    assert chunks[-1].usage.completion_tokens_details.accepted_prediction_tokens == 0
    assert "suffix" in message


def test_nobody_else_waits_for_a_schema_that_is_compiled(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def compile_slowly(wanted: StructuredOutputsParams) -> None:
        gate.wait()
        raise RequestError("structured_outputs takes too long.", "structured_outputs")

    monkeypatch.setattr(llm.grammars, "constraint", compile_slowly)

    async def work(client: httpx.AsyncClient) -> None:
        body = {"prompt": "abc", **GREEDY}
        costly = [
            asyncio.create_task(client.post("/v1/completions", json=body | {"guided_regex": f"a{i}"}))
            for i in range(40)
        ]
        # More than the event loop's own threads are many.
        for _ in range(3):
            assert (await client.post("/v1/completions", json=body)).status_code == 200
            assert (await client.post("/tokenize", json={"prompt": "abc"})).status_code == 200
        gate.set()
        statuses = [(await task).status_code for task in costly]
        assert statuses.count(400) == 32
        assert statuses.count(429) == 8

    ask(llm, work)


def test_beams_are_what_the_library_says(exact: Model) -> None:
    llm, plain = LLM(exact, "suffix", prefix_caching=True, tolerant=True), LLM(exact, "none")
    body = {"prompt": "abc abc", "use_beam_search": True, "n": 3, "max_tokens": 8, "length_penalty": 0.5}
    (expected,) = plain.generate("abc abc", SamplingParams(beam_width=3, n=3, max_tokens=8, length_penalty=0.5))
    reply = post(llm, "/v1/completions", body).json()
    assert [choice["text"] for choice in reply["choices"]] == [beam.text for beam in expected.outputs]
    for choice, beam in zip(reply["choices"], expected.outputs, strict=True):
        assert choice["score"] == beam.score
        assert choice["cumulative_logprob"] == pytest.approx(beam.score * len(beam.token_ids) ** 0.5)  # type: ignore[operator]
    assert reply["usage"]["speculation"]["beam_steps"] == expected.stats.beam_steps
    assert reply["usage"]["completion_tokens"] == sum(len(beam.token_ids) for beam in expected.outputs)
    for width in ({"beam_width": 3}, {"use_beam_search": True, "best_of": 3}):
        best = post(llm, "/v1/completions", body | {"n": 1, "use_beam_search": None} | width).json()["choices"]
        assert [choice["text"] for choice in best] == [expected.text]
    chunks = events(post(llm, "/v1/completions", body | {"stream": True}))
    texts = ["".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == i) for i in range(3)]
    assert texts == [beam.text for beam in expected.outputs]
    told = {c["index"]: c["score"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]}
    assert [told[i] for i in range(3)] == [choice["score"] for choice in reply["choices"]]
    chat = post(llm, "/v1/chat/completions", {"messages": CHAT, "beam_width": 2, "max_tokens": 4, "stop": "e"}).json()
    assert chat["choices"][0]["score"] < 0
    assert "score" not in post(llm, "/v1/completions", {"prompt": "abc", "max_tokens": 2}).json()["choices"][0]


def test_what_structured_outputs_need_is_ready_before_the_first_request(llm: LLM) -> None:
    pytest.importorskip("llguidance", reason="needs the extra 'structured'")

    async def work(client: httpx.AsyncClient) -> bool:
        return "grammars" in vars(llm)

    assert ask(llm, work)
