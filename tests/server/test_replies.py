"""What replies hold besides the text: streams, log-probabilities, offsets, the echo of a prompt."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, assert_openai_error, events, post

from headstart import LLM, SamplingParams


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
