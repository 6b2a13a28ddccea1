"""Filling in over HTTP: OpenAI's ``suffix``, llama.cpp's ``/infill``, Mistral's and Ollama's routes say the same."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the extra 'server'")

from serving import ask, assert_openai_error, events, post
from tiny_checkpoint import write_tiny_model

from headstart import LLM
from headstart.loading.model import Model, load_model

PREFIX, SUFFIX = "def add(a, b):\n    return", "\n\nprint(add(1, 2))"
MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
GREEDY = {"temperature": 0, "max_tokens": 12}
INFILL = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "temperature": 0, "n_predict": 12}


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_tiny_model(tmp_path_factory.mktemp("coder"), head_dim=32, specials=MARKS), "fp32")


@pytest.fixture
def filling(coder: Model) -> LLM:
    return LLM(coder, "ngram", prefix_caching=True, tolerant=True)


def expected(llm: LLM, written: str, **fields: Any) -> str:
    """What follows a text in which the marks are read as such."""
    reply = post(llm, "/v1/completions", {"prompt": written, **GREEDY, **fields})
    text: str = reply.json()["choices"][0]["text"]
    return text


def test_every_route_fills_in_the_same(filling: LLM) -> None:
    middle = expected(filling, f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|>")
    assert len(middle) >= 12

    async def work(client: httpx.AsyncClient) -> list[str]:
        async def sent(path: str, body: dict[str, Any]) -> Any:
            return (await client.post(path, json=body)).json()

        openai = await sent("/v1/completions", {"prompt": PREFIX, "suffix": SUFFIX, **GREEDY})
        mistral = await sent("/v1/fim/completions", {"prompt": PREFIX, "suffix": SUFFIX, "random_seed": 1, **GREEDY})
        options = {"temperature": 0, "num_predict": 12}
        asked = {"prompt": PREFIX, "suffix": SUFFIX, "options": options, "stream": False}
        return [
            openai["choices"][0]["text"],
            (await sent("/infill", INFILL))["content"],
            mistral["choices"][0]["message"]["content"],
            (await sent("/api/generate", asked))["response"],
        ]

    assert ask(filling, work) == [middle] * 4


def test_streams_add_up(filling: LLM) -> None:
    whole = post(filling, "/infill", INFILL).json()
    *blocks, rest = post(filling, "/infill", INFILL | {"stream": True}).text.split("\n\n")
    told = [json.loads(block.removeprefix("data: ")) for block in blocks]
    assert rest == ""
    assert "".join(each["content"] for each in told) == whole["content"]
    assert [each["stop"] for each in told] == [False] * (len(told) - 1) + [True]
    assert (told[-1]["stop_type"], told[-1]["tokens_predicted"]) == ("limit", 12)
    body = {"prompt": PREFIX, "suffix": SUFFIX, **GREEDY}
    chunks = events(post(filling, "/v1/fim/completions", body | {"stream": True}))
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == whole["content"]
    assert (chunks[-1]["choices"][0]["finish_reason"], chunks[-1]["usage"]["completion_tokens"]) == ("length", 12)


def test_other_files_stand_before(filling: LLM) -> None:
    written = (
        "<|repo_name|>repository\n<|file_sep|>util.py\nx = 1\n<|file_sep|>filename\n"
        f"<|fim_prefix|>{PREFIX}<|fim_suffix|>{SUFFIX}<|fim_middle|> a"
    )
    extra = {"input_extra": [{"filename": "util.py", "text": "x = 1"}], "prompt": " a"}
    assert post(filling, "/infill", INFILL | extra).json()["content"] == expected(filling, written)


def test_what_stands_nearest_is_kept_of_long_texts(filling: LLM) -> None:
    context = filling.engine.limits.max_context
    long = {"input_prefix": "x" * 3000 + PREFIX, "input_suffix": SUFFIX + "y" * 3000}
    extra = {"input_extra": [{"filename": "a", "text": "z" * 3000}]}
    reply = post(filling, "/infill", INFILL | long | extra).json()
    assert context - 13 <= reply["tokens_evaluated"] + 12 <= context
    assert reply["tokens_predicted"] == 12


def test_a_prompt_may_be_read_for_the_cache_alone(filling: LLM) -> None:
    reply = post(filling, "/infill", INFILL | {"n_predict": 0}).json()
    assert (reply["content"], reply["tokens_predicted"]) == ("", 0)


def test_marks_end_a_middle(filling: LLM) -> None:
    end = filling.model.tokenizer.vocabulary["<|file_sep|>"]
    reply = post(filling, "/infill", INFILL | {"logit_bias": {str(end): 100}}).json()
    assert (reply["content"], reply["stop_type"]) == ("", "eos")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix"),
        ("/v1/fim/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ],
)
def test_a_model_without_marks_says_so(llm: LLM, path: str, body: dict[str, Any], field: str) -> None:
    error = assert_openai_error(post(llm, path, body), 400)
    assert (error["param"], "no tokens for that" in error["message"]) == (field, True)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True}, "suffix"),
        ("/infill", {"input_suffix": "b"}, "input_prefix"),
        ("/infill", INFILL | {"n": 2}, "n"),
        ("/infill", INFILL | {"input_extra": [{"filename": "a"}]}, "input_extra.0.text"),
        ("/v1/fim/completions", {"suffix": "b"}, "prompt"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_by_name(filling: LLM, path: str, body: dict[str, Any], field: str) -> None:
    assert assert_openai_error(post(filling, path, body), 400)["param"] == field
