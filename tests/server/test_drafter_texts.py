"""Texts that a server is given at run time, and those of earlier requests: for whom they are guessed from, how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import GREEDY, ask, assert_openai_error, post

from headstart import LLM, SamplingParams, SpeculationParams
from headstart.errors import ConfigError, RequestError
from headstart.loading.model import Model
from headstart_server.settings import ServerSettings

PATH = "/v1/drafter/texts"
ANSWER = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPT = [7, 8, 9]


@pytest.fixture(scope="module")
def said(model: Model) -> list[int]:
    (output,) = LLM(model, "none").generate([PROMPT], ANSWER)
    return list(output.token_ids)


def rounds(llm: LLM, salt: str, said: list[int], **speculation: Any) -> int:
    """Of an answer, which must be plain decoding's."""
    wishes = SpeculationParams(**speculation)
    (output,) = llm.generate([PROMPT], ANSWER, cache_salt=salt, speculation=wishes)
    assert output.token_ids == said
    return output.stats.rounds


@pytest.mark.parametrize("drafter", ["suffix", "auto"])
def test_a_given_text_is_guessed_from_for_its_salt_alone(model: Model, said: list[int], drafter: str) -> None:
    llm = LLM(model, drafter)
    plain = rounds(llm, "other", said)
    assert llm.add_drafter_texts([PROMPT + said], cache_salt="mine") == len(PROMPT) + len(said)
    if drafter == "suffix":  # how much the planner guesses depends on clocks
        assert rounds(llm, "mine", said) < plain / 2
    else:
        rounds(llm, "mine", said)
    assert rounds(llm, "other", said) == plain or drafter == "auto"
    assert rounds(llm, "mine", said, enabled=False) == len(said)


def test_what_was_said_is_guessed_from_after_a_restart(model: Model, said: list[int], tmp_path: Path) -> None:
    asked = {"drafter": "suffix", "drafter_store": tmp_path / "store"}
    with LLM(model, **asked) as first:
        plain = rounds(first, "mine", said)
        assert rounds(first, "mine", said) < plain / 2
        first.add_drafter_texts(["a text", "another"], cache_salt="mine")
    with LLM(model, **asked) as second:
        assert rounds(second, "other", said) == plain
        assert rounds(second, "mine", said) < plain / 2
    # Without a directory nothing is kept of what requests say.
    with LLM(model, drafter="suffix") as third:
        assert rounds(third, "mine", said) == rounds(third, "mine", said) == plain


def test_what_cannot_be_taken_is_refused(model: Model, tmp_path: Path) -> None:
    llm = LLM(model, "suffix")
    for wrong in ([-1], [1 << 20], "half \ud800", [["a"]]):
        with pytest.raises(RequestError) as caught:
            llm.add_drafter_texts(wrong)  # type: ignore[arg-type]
        assert caught.value.field == "texts"
    with pytest.raises(RequestError, match="no drafter of this engine copies from texts"):
        LLM(model, "ngram").add_drafter_texts("a text")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="which is no directory"):
        LLM(model, drafter_store=file)


def test_a_server_takes_texts_of_each_key_apart(model: Model, said: list[int]) -> None:
    keys = [{"authorization": f"Bearer {key}"} for key in ("first", "second")]
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}

    async def work(client: httpx.AsyncClient) -> tuple[list[httpx.Response], list[int]]:
        async def asked(key: int, **more: str) -> int:
            answer = (await client.post("/v1/completions", json=body | more, headers=keys[key])).json()
            assert answer["choices"][0]["token_ids"] == said
            return int(answer["usage"]["speculation"]["rounds"])

        counts = [await asked(1)]
        replies = [
            await client.post(PATH, json={"texts": PROMPT + said}),
            await client.post(PATH, json={"texts": PROMPT + said}, headers=keys[0]),
            await client.post(PATH, json={"texts": [PROMPT + said], "cache_salt": "s"}, headers=keys[1]),
        ]
        counts += [await asked(0), await asked(1), await asked(0, cache_salt="s"), await asked(1, cache_salt="s")]
        return replies, counts

    replies, counts = ask(LLM(model, "suffix"), work, ServerSettings("tiny", api_keys=("first", "second")))
    assert_openai_error(replies[0], 401)
    assert [reply.json() for reply in replies[1:]] == [{"object": "drafter.texts", "tokens": 27}] * 2
    plain = counts[0]
    assert [count < plain / 2 for count in counts[1:]] == [True, False, False, True]


def test_wrong_bodies_are_refused_in_a_sentence(llm: LLM) -> None:
    assert post(llm, PATH, {"texts": ["one", "two"]}).json()["tokens"] > 1
    for wrong in ({}, {"texts": 3}, {"texts": [1, "a"]}, {"texts": [10**9]}, {"texts": "a", "cache_salt": "s" * 300}):
        assert_openai_error(post(llm, PATH, wrong), 400)
    long = post(llm, PATH, {"texts": "a" * (3 << 20)})
    assert_openai_error(long, 413)
    assert post(llm, "/v1/completions", {"prompt": "abab", **GREEDY}).status_code == 200
