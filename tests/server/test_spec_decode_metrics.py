"""``metrics.speculative_decoding``: vLLM's form, which AIPerf and others read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import CHAT, SETTINGS, assert_openai_error, events, post

from headstart import LLM
from headstart.engine.outputs import SequenceStats
from headstart_server.replies import spec_decode_metrics

ASKED = {"speculation": {"metrics": True}}
BODY = {"messages": CHAT, "temperature": 0, "max_tokens": 60, "ignore_eos": True}
PATHS = {"/v1/chat/completions": {"messages": CHAT}, "/v1/completions": {"prompt": "one two one two"}}


def test_counts_are_vllms() -> None:
    stats = SequenceStats(drafted=129, drafted_per_position=[43, 4, 3], accepted_per_position=[4, 3, 3])
    # The example of vLLM's pull request 48915.
    assert spec_decode_metrics(stats) == {
        "mean_acceptance_length": pytest.approx(1.2325581395348837),
        "draft_acceptance_rate": pytest.approx(0.07751937984496124),
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }


def test_a_token_behind_the_end_is_not_counted() -> None:
    """The last of three steps ended the output with its second guess: 3 + 3 + 2 tokens were said."""
    stats = SequenceStats(drafted=6, drafted_per_position=[3, 3], accepted_per_position=[3, 3], unsaid=1, tokens=8)
    counts = spec_decode_metrics(stats)
    assert counts is not None
    assert counts["mean_acceptance_length"] == pytest.approx(8 / 3)


def test_replies_agree_with_themselves_however_they_end(llm: LLM) -> None:
    """Where every round guesses, both lengths are the same."""
    for most in range(40, 46):
        reply = post(llm, "/v1/chat/completions", BODY | ASKED | {"max_tokens": most}).json()
        counts, usage = reply["metrics"]["speculative_decoding"], reply["usage"]
        unguessed = usage["speculation"]["rounds"] - counts["num_spec_steps"]
        said = counts["mean_acceptance_length"] * counts["num_spec_steps"] + unguessed
        assert said == pytest.approx(usage["completion_tokens"])


def test_nothing_guessed_is_nothing_said() -> None:
    assert spec_decode_metrics(SequenceStats(tokens=5, rounds=5)) is None
    refused = SequenceStats(drafted=4, drafted_per_position=[2, 1])
    counts = spec_decode_metrics(refused)
    assert counts is not None
    assert counts["acceptance_histogram"] == [2, 0, 0]
    assert counts["mean_acceptance_length"] == 1


def consistent(counts: dict[str, Any], usage: dict[str, Any]) -> None:
    """What AIPerf demands of a record, and what the reply's own counts say."""
    histogram = counts["acceptance_histogram"]
    assert sum(histogram) == counts["num_spec_steps"] > 0
    assert len(histogram) == counts["num_spec_tokens"] + 1
    accepted = sum(place * steps for place, steps in enumerate(histogram))
    assert accepted == counts["num_accepted_draft_tokens"] == usage["speculation"]["accepted"] > 0
    assert counts["num_draft_tokens"] == usage["speculation"]["drafted"] >= accepted


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("always", [True, False], ids=["server", "request"])
def test_replies_and_streams_have_them_where_asked_for(llm: LLM, path: str, always: bool) -> None:
    settings = replace(SETTINGS, spec_decode_metrics=always)
    body = {**BODY, **PATHS[path], **({} if always else ASKED)}
    body.pop("messages" if path == "/v1/completions" else "prompt", None)
    whole = post(llm, path, body, settings).json()
    consistent(whole["metrics"]["speculative_decoding"], whole["usage"])
    streamed = events(post(llm, path, body | {"stream": True, "stream_options": {"include_usage": True}}, settings))
    consistent(streamed[-1]["metrics"]["speculative_decoding"], streamed[-1]["usage"])
    assert not any("metrics" in chunk for chunk in streamed[:-1])


@pytest.mark.parametrize(
    "more", [{}, {"n": 2, **ASKED}, {"speculation": {"off": True, "metrics": True}}], ids=["unasked", "two", "off"]
)
def test_they_are_left_out_else(llm: LLM, more: dict[str, Any]) -> None:
    assert "metrics" not in post(llm, "/v1/chat/completions", BODY | more).json()


def test_another_form_is_refused(llm: LLM) -> None:
    reply = post(llm, "/v1/chat/completions", BODY | {"speculation": {"metrics": "detailed"}})
    assert assert_openai_error(reply, 400)["param"] == "speculation.metrics"
