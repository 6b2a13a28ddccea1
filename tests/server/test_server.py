"""The routes, as clients of the OpenAI API use them."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import ask, assert_openai_error, events, post

from headstart import LLM, SamplingParams
from headstart.drafting.base import SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.draft_models.hierarchical import DraftedSequence
from headstart.drafting.model_free.none import NoDrafter
from headstart.drafting.options import NoOptions
from headstart.loading import Model, load_model
from headstart.server.settings import ServerSettings
from headstart.text.chat import ChatTemplate

GREEDY = {"temperature": 0, "max_tokens": 12}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
CHAT = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", more_drafters=["ngram", "random"], prefix_caching=True, tolerant=True)


@pytest.fixture
def plain(model: Model) -> LLM:
    return LLM(model, "none")


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


def test_a_stream_joins_to_the_whole_answer(llm: LLM) -> None:
    body = {"messages": CHAT, "seed": 3, "max_tokens": 20, "n": 2, "logprobs": True, "top_logprobs": 2}
    body |= {"speculation": {"verify": "coupled"}}
    whole = post(llm, "/v1/chat/completions", body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(post(llm, "/v1/chat/completions", body | options))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 40
    assert all(chunk["usage"] is None for chunk in chunks)
    for index, choice in enumerate(whole["choices"]):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        streamed = [entry for c in mine if c["logprobs"] for entry in c["logprobs"]["content"]]
        assert streamed == choice["logprobs"]["content"]
        assert len(streamed) == 20
        assert all(len(entry["top_logprobs"]) == 2 for entry in streamed)
    final = [chunk["speculation"] for chunk in chunks if "speculation" in chunk]
    assert sum(counts["accepted"] for counts in final) == last["usage"]["speculation"]["accepted"]


def test_stop_strings_end_an_answer(llm: LLM) -> None:
    text = post(llm, "/v1/completions", {"prompt": "abc", **GREEDY}).json()["choices"][0]["text"]
    (choice,) = post(llm, "/v1/completions", {"prompt": "abc", **GREEDY, "stop": [text[4:6]]}).json()["choices"]
    assert choice["text"] == text[: text.index(text[4:6])]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", text[4:6])


def test_echo_with_logprobs_scores_the_prompt(llm: LLM, plain: LLM) -> None:
    """What lm-eval reads: the log-likelihood of a continuation, and whether it is the greedy one."""
    (greedy,) = plain.generate("abcdef", SamplingParams(temperature=0, max_tokens=5, logprobs=1))
    ids = [*greedy.prompt_token_ids, *greedy.token_ids]
    for _ in range(2):  # the second time the prefix cache knows the prompt
        body = {"prompt": ids, "echo": True, "logprobs": 1, "temperature": 0, "max_tokens": 1}
        (choice,) = post(llm, "/v1/completions", body).json()["choices"]
        logprobs = choice["logprobs"]
        assert choice["text"].startswith("abcdef" + greedy.text)
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(ids) + 1
        assert logprobs["token_logprobs"][0] is None
        assert greedy.logprobs is not None
        scored = logprobs["token_logprobs"][6 : len(ids)]
        assert scored == pytest.approx([entry.logprob for entry in greedy.logprobs], abs=1e-4)
        for token, top in zip(logprobs["tokens"][6:], logprobs["top_logprobs"][6:], strict=True):
            assert max(top, key=top.get) == token
        assert [logprobs["text_offset"][i] for i in (0, 1, 6)] == [0, 1, 6]


def test_a_prompt_is_scored_without_an_answer(llm: LLM) -> None:
    """``max_tokens: 0`` beside ``echo``, as evaluations ask for log-likelihoods."""
    body = {"prompt": ["abcdef", "xy"], "echo": True, "temperature": 0}
    for logprobs in (None, 1):
        longer = post(llm, "/v1/completions", {**body, "logprobs": logprobs, "max_tokens": 1}).json()
        reply = post(llm, "/v1/completions", {**body, "logprobs": logprobs, "max_tokens": 0}).json()
        assert [choice["text"] for choice in reply["choices"]] == ["abcdef", "xy"]
        assert reply["usage"]["completion_tokens"] == 0
        assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] == 8
        for choice, more in zip(reply["choices"], longer["choices"], strict=True):
            assert choice["finish_reason"] == "length"
            if logprobs is None:
                assert choice["logprobs"] is None
            else:
                assert choice["logprobs"] == {name: values[:-1] for name, values in more["logprobs"].items()}
    assert_openai_error(post(llm, "/v1/completions", {**body, "echo": False, "max_tokens": 0}), 400)


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


def test_concurrent_answers_are_those_of_one_at_a_time(model: Model, plain: LLM) -> None:
    prompts = [("shared beginning " * 6) + "x" * (9 * i) for i in range(6)] + [f"{i} other" for i in range(4)]
    expected = [plain.generate(prompt, SamplingParams(temperature=0, max_tokens=90))[0].text for prompt in prompts]
    llm = LLM(
        model,
        "suffix",
        more_drafters=["ngram", "random"],
        prefix_caching=True,
        max_batch_size=6,
        max_rows=48,
        max_context=300,
        cache_tokens=320,
    )
    drafters = ["suffix", "ngram", "random"]

    async def together(client: httpx.AsyncClient) -> tuple[list[str], str]:
        bodies = [
            {"prompt": p, "temperature": 0, "max_tokens": 90, "speculation": {"drafter": drafters[i % 3]}}
            for i, p in enumerate(prompts)
        ]
        replies = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        return [reply.json()["choices"][0]["text"] for reply in replies], (await client.get("/metrics")).text

    texts, metrics = ask(llm, together)
    assert texts == expected
    values = {line.split("{")[0]: float(line.split()[-1]) for line in metrics.splitlines() if line[0] != "#"}
    assert values["vllm:prefix_cache_hits_total"] > 0
    assert values["vllm:num_preemptions_total"] > 0
    assert values["vllm:spec_decode_num_accepted_tokens_total"] > 0


def test_metrics_add_up(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> tuple[dict[str, Any], dict[str, Any], str]:
        usage = (await client.post("/v1/completions", json={"prompt": "abab", **GREEDY})).json()["usage"]
        return usage, (await client.get("/stats")).json(), (await client.get("/metrics")).text

    usage, stats, metrics = ask(llm, work)
    totals = stats["totals"]
    assert totals["vllm:generation_tokens_total"] == usage["completion_tokens"] == 12
    assert totals["vllm:spec_decode_num_draft_tokens_total"] == usage["speculation"]["drafted"]
    for position, accepted in enumerate(usage["speculation"]["accepted_per_position"]):
        series = f'{{drafter="suffix",position="{position}"}}'
        assert totals[f"headstart:spec_decode_accepted_per_pos_total{series}"] == accepted
    assert stats["now"]["vllm:num_requests_running"] == 0
    assert 'vllm:request_success_total{finished_reason="length",model_name="tiny"} 1' in metrics
    assert "vllm:time_to_first_token_seconds_count 1" in metrics


def test_tokens_go_both_ways(llm: LLM) -> None:
    reply = post(llm, "/tokenize", {"prompt": "héllo"}).json()
    assert reply["count"] == len(reply["tokens"]) == 6
    assert post(llm, "/detokenize", {"tokens": reply["tokens"]}).json() == {"prompt": "héllo"}
    chat = post(llm, "/tokenize", {"messages": CHAT}).json()["tokens"]
    assert chat == llm.encode_chat(CHAT).token_ids
    assert_openai_error(post(llm, "/tokenize", {}), 400)
    for token in (-1, llm.model.config.vocab_size, 2**70):
        error = assert_openai_error(post(llm, "/detokenize", {"tokens": [5, token]}), 400)
        assert str(token) in error["message"]


def test_state_is_told(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> list[dict[str, Any]]:
        assert_openai_error(await client.get("/v1/models/other"), 404)
        paths = ("/v1/models", "/v1/models/tiny", "/health", "/version", "/openapi.json")
        return [(await client.get(path)).json() for path in paths]

    models, model, health, version, document = ask(llm, work)
    assert models["data"] == [model]
    assert model["id"] == "tiny"
    assert health == {"status": "ok"}
    assert version["version"]
    assert "/v1/chat/completions" in document["paths"]


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
    ({"use_beam_search": True}, 400),
    ({"typical_p": 0.5}, 400),
    ({"n": 17}, 400),
    ({"n": 0}, 400),
    ({"n": -1}, 400),
    ({"logprobs": 21}, 400),
    ({"logprobs": -1}, 400),
    ({"max_tokens": 0}, 400),
    ({"temperature": -1}, 400),
    ({"temperature": "NaN"}, 400),
    ({"top_p": 2}, 400),
    ({"seed": 2**70}, 400),
    ({"logit_bias": {"5000": 1}}, 400),
    ({"logit_bias": {"x": 1}}, 400),
    ({"logit_bias": {str(i): 1 for i in range(301)}}, 400),
    ({"stop": ["x"] * 17}, 400),
    ({"stop": "x" * 257}, 400),
    ({"stop": [""]}, 400),
    ({"model": "other"}, 404),
    ({"model": "\ud800"}, 400),
    ({"speculation": {"drafter": "eagle"}}, 400),
    ({"speculation": {"verify": "guess"}}, 400),
    ({"speculation": {"draft_tokens": -1}}, 400),
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
    body = {"prompt": "abc abc", **GREEDY}
    texts = [
        post(llm, "/v1/completions", body | more).json()["choices"][0]["text"]
        for more in ({}, nothing, {"add_generation_prompt": True})
    ]
    assert texts[0] == texts[1] == texts[2]


def test_only_allowed_tokens_are_said(llm: LLM) -> None:
    allowed = llm.model.tokenizer.encode("xyz")
    body = {"prompt": "abc abc", "max_tokens": 12, "temperature": 1, "allowed_token_ids": allowed, "ignore_eos": True}
    said = post(llm, "/v1/completions", body).json()["choices"][0]["text"]
    assert len(said) == 12
    assert set(said) <= set("xyz")


@pytest.mark.parametrize("drafter", ["suffix", None])
def test_offsets_point_into_the_text_whole_or_streamed(llm: LLM, drafter: str | None) -> None:
    pieces = llm.model.tokenizer.encode("a🙂")
    wanted = [*pieces, *pieces[1:], pieces[0]]
    # Of random weights nothing else would ever be a character of several tokens.
    bias = {str(token): 100.0 for token in wanted}
    speculation = {"drafter": drafter} if drafter else {"off": True}
    body = {"prompt": "🙂a🙂🙂a", "max_tokens": 40, "temperature": 1, "seed": 3, "logit_bias": bias, "logprobs": 0}
    body |= {"speculation": speculation | {"verify": "coupled"}, "stop": "aaaaaaaaaaaaaaaa"}
    (whole,) = post(llm, "/v1/completions", body).json()["choices"]
    chunks = [c for event in events(post(llm, "/v1/completions", body | {"stream": True})) for c in event["choices"]]
    offsets = whole["logprobs"]["text_offset"]
    assert [offset for chunk in chunks for offset in chunk["logprobs"]["text_offset"]] == offsets
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(whole["text"])
    for token, offset in zip(whole["logprobs"]["tokens"], offsets, strict=True):
        # What a token breaks off stands before it, as U+FFFD.
        assert token == "\ufffd" or whole["text"][offset:].lstrip("\ufffd").startswith(token)


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
]


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


def test_bad_chats_are_refused_in_openais_shape(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for changes in BAD_CHATS:
            body = {"messages": CHAT, **GREEDY, **changes}
            assert_openai_error(await client.post("/v1/chat/completions", json=body), 400)

    ask(llm, work)


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


def test_odd_bodies_and_paths_are_refused_in_openais_shape(llm: LLM) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for body in (b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff"):
            reply = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            assert assert_openai_error(reply, 400)["message"].endswith(".")
        refused = assert_openai_error(await client.get("/v1/completions"), 405)
        assert refused["message"] == "GET /v1/completions is not served here; this path takes another method."
        refused = assert_openai_error(await client.post("/v1/embeddings"), 404)
        assert refused["message"] == "POST /v1/embeddings is not served here; GET /openapi.json says what is."

    ask(llm, work)


def test_bad_logits_end_their_own_request_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = llm.engine.runner.backend
    forward = backend.forward
    poison = llm.model.tokenizer.encode("Z")[0]

    def poisoned(batch: Any, storage: Any) -> Any:
        output = forward(batch, storage)
        logits = output.logits.clone()
        logits[[i for i, row in enumerate(batch.logit_rows.tolist()) if batch.tokens[row] == poison]] = float("nan")
        return replace(output, logits=logits)

    monkeypatch.setattr(backend, "forward", poisoned)

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {**GREEDY, "logit_bias": {str(poison): -100}}
        bodies = [{"prompt": prompt, **body} for prompt in ("abc", "abcZ", "xyz")]
        return await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))

    good, bad, other = ask(llm, work)
    assert good.status_code == other.status_code == 200
    assert "not a finite number" in assert_openai_error(bad, 500)["message"]


def test_a_failed_pass_ends_what_it_computed_and_the_server_goes_on(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = llm.engine.runner.backend
    forward = backend.forward
    calls = []

    def failing(batch: Any, storage: Any) -> Any:
        calls.append(batch)
        if len(calls) == 3:
            raise MemoryError
        return forward(batch, storage)

    monkeypatch.setattr(backend, "forward", failing)

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {"prompt": "abc", **GREEDY, "speculation": {"off": True}}
        return [await client.post("/v1/completions", json=body) for _ in range(2)]

    failed, served = ask(llm, work)
    assert_openai_error(failed, 500)
    assert served.status_code == 200


def test_tenants_share_no_prefixes(llm: LLM) -> None:
    settings = ServerSettings("tiny", api_keys=("one", "two"))

    async def work(client: httpx.AsyncClient) -> list[int]:
        found = []
        for key, salt in [("one", "a"), ("one", "b"), ("two", "a"), ("one", "a")]:
            body = {"prompt": "a long enough prompt " * 4, **GREEDY, "cache_salt": salt}
            reply = await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})
            found.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        return found

    assert ask(llm, work, settings) == [0, 0, 0, 64]


def test_drafters_learn_within_a_tenant_only(model: Model) -> None:
    scopes = []

    class Learner(NoDrafter):
        """Notes in whose name it would learn, for a request and for what a drafter makes of one."""

        def __init__(self, context: DraftContext, options: NoOptions) -> None:
            self.scope_of = context.scope_of

        def begin(self, sequence: SequenceView) -> None:
            scopes.append(self.scope_of(sequence))
            inner = DraftedSequence(sequence, -1, [], 0, sequence.params, sequence.speculation, sequence.noise)
            scopes.append(self.scope_of(inner))

    async def work(client: httpx.AsyncClient) -> None:
        for salt in ("a", "b"):
            await client.post("/v1/completions", json={"prompt": "abc", **GREEDY, "cache_salt": salt})

    ask(LLM(model, Learner), work)
    assert scopes == ["/a", "/a", "/b", "/b"]


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
