"""Fields of vLLM's and llama.cpp's users beside OpenAI's: what each changes, and that nothing else does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import assert_openai_error, events, post

from headstart import LLM, RequestError, SamplingParams
from headstart.loading.model import Model, load_model
from headstart.text.chat import ChatTemplate

GREEDY = {"temperature": 0, "max_tokens": 12}
CHAT = [{"role": "user", "content": "hello there"}]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}<end the>{% endfor %}"
    "{% for d in documents or [] %}({{ d.text }}){% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> Model:
    return replace(load_model(tiny_model_dir, "fp32"), chat_template=ChatTemplate(TEMPLATE))


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", more_drafters=["ngram", "random"], prefix_caching=True, tolerant=True)


def completion(llm: LLM, **fields: Any) -> dict[str, Any]:
    """The one choice of a completion."""
    (choice,) = post(llm, "/v1/completions", {"prompt": "abc abc", **GREEDY, **fields}).json()["choices"]
    return choice


def streamed(llm: LLM, **fields: Any) -> list[dict[str, Any]]:
    """The parts of a streamed completion's one choice."""
    body = {"prompt": "abc abc", **GREEDY, **fields, "stream": True}
    return [choice for chunk in events(post(llm, "/v1/completions", body)) for choice in chunk["choices"]]


@pytest.mark.parametrize("wish", [{"off": True}, {}, {"drafter": "ngram"}, {"drafter": "random"}])
def test_bad_words_are_not_said(llm: LLM, wish: dict[str, Any]) -> None:
    letters = llm.model.tokenizer.encode("ab ")
    fields = {"allowed_token_ids": letters, "ignore_eos": True, "max_tokens": 120, "temperature": 4, "seed": 2}
    fields |= {"speculation": wish | {"verify": "coupled"}}
    free = completion(llm, **fields)["text"]
    said = completion(llm, **fields, bad_words=["bab", " a"])["text"]
    assert len(said) == 120
    assert "bab" in free
    assert " a" in free
    assert "bab" not in said
    assert not said.startswith("a")
    plain = completion(llm, **fields | {"speculation": {"off": True}}, bad_words=["bab", " a"])
    assert said == plain["text"]


@pytest.mark.parametrize("start", range(1, 9))
@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_is_kept_where_asked_for(llm: LLM, start: int, length: int) -> None:
    text = completion(llm)["text"]
    stop = text[start : start + length]
    end = text.index(stop)
    without, kept = completion(llm, stop=stop), completion(llm, stop=stop, include_stop_str_in_output=True)
    assert (without["text"], kept["text"]) == (text[:end], text[:end] + stop)
    assert kept["stop_reason"] == without["stop_reason"] == stop
    parts = streamed(llm, stop=stop, include_stop_str_in_output=True)
    assert "".join(part["text"] for part in parts) == kept["text"]
    # Nothing that may still become a stop string is shown before it is one.
    assert "".join(part["text"] for part in streamed(llm, stop=[stop, text + "x"])) == without["text"]


def test_a_stop_token_is_no_text_unless_asked_for(llm: LLM) -> None:
    text = completion(llm)["text"]
    (stop,) = llm.model.tokenizer.encode(text[5])
    end = text.index(text[5])
    assert completion(llm, stop_token_ids=[stop])["text"] == text[:end]
    kept = completion(llm, stop_token_ids=[stop], include_stop_str_in_output=True)
    assert kept["text"] == text[: end + 1]
    assert kept["stop_reason"] == stop


def test_special_tokens_show_where_asked_for(llm: LLM) -> None:
    tokenizer = llm.model.tokenizer
    special = next(token for token in tokenizer.special_ids if token not in llm.model.eos_token_ids)
    fields = {"logit_bias": {str(special): 100}, "max_tokens": 2, "ignore_eos": True}
    assert completion(llm, **fields)["text"] == ""
    assert completion(llm, **fields, skip_special_tokens=False)["text"] == tokenizer.token_text(special) * 2


def test_a_prompt_is_cut_from_the_left(llm: LLM) -> None:
    body = {"prompt": "xyzzy abc abc", **GREEDY, "echo": True}
    reply = post(llm, "/v1/completions", body | {"truncate_prompt_tokens": 7}).json()
    assert reply["usage"]["prompt_tokens"] == 7
    assert reply["choices"][0]["text"] == completion(llm, echo=True)["text"]
    assert post(llm, "/v1/completions", body | {"truncate_prompt_tokens": 99}).json()["usage"]["prompt_tokens"] == 13
    context = llm.engine.limits.max_context
    long = post(llm, "/v1/completions", {"prompt": "a" * (context + 9), **GREEDY, "truncate_prompt_tokens": -1}).json()
    assert long["usage"]["prompt_tokens"] == context - 12
    chat = post(llm, "/v1/chat/completions", {"messages": CHAT, **GREEDY, "truncate_prompt_tokens": 3}).json()
    assert chat["usage"]["prompt_tokens"] == 3


def test_prompt_logprobs_are_those_of_the_echo_with_and_without_a_cached_prefix(llm: LLM) -> None:
    prompt = "the same beginning, longer than a block of the cache, again"
    echo = completion(llm, prompt=prompt, echo=True, logprobs=2)["logprobs"]
    for _ in range(2):
        body = {"prompt": prompt, **GREEDY, "n": 2, "temperature": 1, "prompt_logprobs": 2, "seed": 1}
        reply = post(llm, "/v1/completions", body).json()
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        for choice in reply["choices"]:
            ids = llm.encode(prompt).token_ids
            assert choice["logprobs"] is None
            assert choice["prompt_logprobs"][0] is None
            assert len(choice["prompt_logprobs"]) == len(ids)
            for place, entry in enumerate(choice["prompt_logprobs"][1:], start=1):
                own = entry[str(ids[place])]
                assert own["logprob"] == pytest.approx(echo["token_logprobs"][place], abs=1e-5)
                assert own["decoded_token"] == prompt[place]
                assert 2 <= len(entry) <= 3
                ranks = {value["rank"] for value in entry.values()}
                assert ranks == {1, 2, own["rank"]}
                ranked = sorted(entry.values(), key=lambda value: value["rank"])
                assert [value["logprob"] for value in ranked] == sorted((v["logprob"] for v in ranked), reverse=True)
    more = completion(llm, prompt=prompt, echo=True, logprobs=1, prompt_logprobs=3, max_tokens=0)
    assert all(len(top) <= 2 for top in more["logprobs"]["top_logprobs"][1:])
    assert all(len(entry) >= 3 for entry in more["prompt_logprobs"][1:])
    chat = post(llm, "/v1/chat/completions", {"messages": CHAT, **GREEDY, "prompt_logprobs": 0}).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert all(len(entry) == 1 for entry in chat["prompt_logprobs"][1:])


@pytest.mark.parametrize("max_tokens", [0, 1, 20])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_streamed_echo_joins_to_the_whole(llm: LLM, max_tokens: int, logprobs: int | None) -> None:
    fields = {"prompt": "abcdef", "echo": True, "logprobs": logprobs, "max_tokens": max_tokens}
    whole, parts = completion(llm, **fields), streamed(llm, **fields)
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [whole["finish_reason"]]
    if logprobs is not None:
        for name, values in whole["logprobs"].items():
            assert [value for part in parts if part["logprobs"] for value in part["logprobs"][name]] == values
    if max_tokens == 0:
        body = {**GREEDY, **fields, "stream": True, "stream_options": {"include_usage": True}}
        assert events(post(llm, "/v1/completions", body))[-1]["usage"]["completion_tokens"] == 0


def test_token_ids_come_back_where_asked_for(llm: LLM) -> None:
    tokenizer = llm.model.tokenizer
    whole = completion(llm, return_token_ids=True, logprobs=1, return_tokens_as_token_ids=True)
    assert whole["prompt_token_ids"] == tokenizer.encode("abc abc")
    assert tokenizer.decode(whole["token_ids"]) == whole["text"]
    assert whole["logprobs"]["tokens"] == [f"token_id:{token}" for token in whole["token_ids"]]
    assert "token_ids" not in completion(llm)
    parts = streamed(llm, return_token_ids=True)
    assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for part in parts for token in part.get("token_ids", [])] == whole["token_ids"]
    chat = {"messages": CHAT, **GREEDY, "return_token_ids": True}
    reply = post(llm, "/v1/chat/completions", chat).json()
    assert len(reply["prompt_token_ids"]) == reply["usage"]["prompt_tokens"]
    chunks = events(post(llm, "/v1/chat/completions", chat | {"stream": True}))
    assert chunks[0]["prompt_token_ids"] == reply["prompt_token_ids"]
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert ids == reply["choices"][0]["token_ids"]
    assert tokenizer.decode(ids) == reply["choices"][0]["message"]["content"]


def prompt_of(llm: LLM, messages: list[dict[str, Any]], **fields: Any) -> str:
    """What a chat's prompt became."""
    body = {"messages": messages, **GREEDY, **fields, "return_token_ids": True}
    return llm.model.tokenizer.decode(post(llm, "/v1/chat/completions", body).json()["prompt_token_ids"], False)


def test_a_chat_says_how_its_prompt_ends(llm: LLM) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "Once upon the "}]
    assert prompt_of(llm, CHAT) == "[user] hello there<end the>[assistant] "
    assert prompt_of(llm, CHAT, add_generation_prompt=True) == prompt_of(llm, CHAT)
    assert prompt_of(llm, CHAT, add_generation_prompt=False) == "[user] hello there<end the>"
    # What the template says behind the message repeats its last word; the space at its end is the message's own.
    assert prompt_of(llm, begun, continue_final_message=True) == (
        "[user] hello there<end the>[assistant] Once upon the "
    )
    documents = {"documents": [{"text": "one"}]}
    assert prompt_of(llm, CHAT, **documents) == "[user] hello there<end the>(one)[assistant] "


def test_an_answer_begins_with_what_it_continues_where_asked_for(llm: LLM) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "Once upon the "}]
    body = {"messages": begun, **GREEDY, "continue_final_message": True}
    said = post(llm, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    echoed = post(llm, "/v1/chat/completions", body | {"echo": True}).json()["choices"][0]["message"]["content"]
    assert echoed == "Once upon the " + said
    chunks = events(post(llm, "/v1/chat/completions", body | {"echo": True, "stream": True}))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == echoed


def test_a_request_that_fails_later_names_its_field_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = pytest.importorskip("headstart.text.grammar", reason="needs the extra 'structured'")

    def broken(*_: object) -> None:
        raise RequestError("structured_outputs cannot be followed any further.", "structured_outputs")

    monkeypatch.setattr(grammar.Constraint, "mask", broken)
    reply = post(llm, "/v1/completions", {"prompt": "a", **GREEDY, "guided_regex": "a+"})
    assert assert_openai_error(reply, 400)["param"] == "guided_regex"


def test_a_conversation_is_tokenized_as_it_would_be_answered(llm: LLM) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "Once upon the "}]
    for fields in (
        {},
        {"continue_final_message": True},
        {"add_generation_prompt": False, "documents": [{"text": "a"}]},
    ):
        tokens = post(llm, "/tokenize", {"messages": begun, **fields}).json()["tokens"]
        assert llm.model.tokenizer.decode(tokens, False) == prompt_of(llm, begun, **fields)


def test_a_text_is_read_without_special_tokens_where_asked_for(llm: LLM) -> None:
    tokenizer = llm.model.tokenizer
    for wanted in (True, False):
        choice = completion(llm, prompt="abc", add_special_tokens=wanted, return_token_ids=True)
        assert choice["prompt_token_ids"] == tokenizer.encode("abc", add_special_tokens=wanted)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("completions", {"temperature": -1}, "temperature"),
        ("completions", {"logit_bias": {"99999": 1}}, "logit_bias"),
        ("completions", {"stop": ["x"] * 1025}, "stop"),
        ("completions", {"stop": "x" * 257}, "stop"),
        ("completions", {"bad_words": [" "]}, "bad_words"),
        ("completions", {"prompt": "a" * 600}, "prompt"),
        ("completions", {"prompt": [99999]}, "prompt"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"suffix": "x"}, "suffix"),
        ("completions", {"typical_p": 0.5}, "typical_p"),
        ("completions", {"context_shift": True}, "context_shift"),
        ("completions", {"truncate_prompt_tokens": -1, "max_tokens": 5000}, "max_tokens"),
        ("completions", {"speculation": {"drafter": "eagle"}}, "speculation"),
        ("completions", {"speculation": {"enabled": False}}, "speculation.enabled"),
        ("completions", {"guided_regex": "("}, "guided_regex"),
        ("chat/completions", {"max_completion_tokens": 0}, "max_completion_tokens"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"top_logprobs": 1}, "top_logprobs"),
        ("chat/completions", {"tool_choice": "required"}, "tools"),
        (
            "chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}},
            "response_format",
        ),
        (
            "chat/completions",
            {"tool_choice": "required", "tools": [{"function": {"name": "f", "parameters": {"type": "strin"}}}]},
            "tools",
        ),
        ("chat/completions", {"model": "other"}, "model"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_refusal_names_the_field(llm: LLM, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"prompt": "abc", **GREEDY} if path == "completions" else {"messages": CHAT, **GREEDY}
    reply = post(llm, f"/v1/{path}", body | fields)
    assert assert_openai_error(reply, 404 if param == "model" else 400)["param"] == param


@pytest.mark.parametrize("whole", [True, False])
def test_a_predicted_output_changes_the_time_alone(llm: LLM, whole: bool) -> None:
    body = {"messages": CHAT, "temperature": 1, "seed": 4, "max_tokens": 40}
    plain = post(llm, "/v1/chat/completions", body).json()
    said = plain["choices"][0]["message"]["content"]
    parts: Any = said if whole else [{"type": "text", "text": said[:15]}, {"type": "text", "text": said[15:]}]
    prediction = {"type": "content", "content": parts}
    predicted = post(llm, "/v1/chat/completions", body | {"prediction": prediction}).json()
    assert predicted["choices"] == plain["choices"]
    assert predicted["usage"]["speculation"]["rounds"] < 0.7 * plain["usage"]["speculation"]["rounds"]
    details = predicted["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    reply = post(llm, "/v1/chat/completions", body | {"prediction": {"type": "content", "content": 5}})
    assert str(assert_openai_error(reply, 400)["param"]).startswith("prediction")


@pytest.mark.parametrize("drafter", ["none", "suffix"])
def test_the_library_takes_the_same(model: Model, drafter: str) -> None:
    llm = LLM(model, drafter, prefix_caching=True)
    params = SamplingParams(temperature=0, max_tokens=12)
    (free,) = llm.generate("abc abc", params)
    wishes = [
        replace(params, bad_words=[free.text[3:5]]),
        replace(params, stop=[free.text[4:6]], include_stop_str_in_output=True),
        replace(params, truncate_prompt_tokens=3, prompt_logprobs=1),
    ]
    banned, kept, cut = llm.generate(["abc abc"] * 3, wishes)
    assert free.prompt_logprobs is None
    assert free.text[3:5] not in banned.text
    assert banned.text != free.text
    assert kept.text == free.text[: free.text.index(free.text[4:6]) + 2]
    assert cut.prompt_token_ids == llm.encode("abc abc").token_ids[-3:]
    assert cut.prompt_logprobs is not None
    assert [entry and entry.token_id for entry in cut.prompt_logprobs] == [None, *cut.prompt_token_ids[1:]]
    pieces = list(llm.stream("abc", replace(params, prompt_logprobs=1)))
    assert [piece.prompt_logprobs is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1)
