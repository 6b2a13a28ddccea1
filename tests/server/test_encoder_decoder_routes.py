"""A served model with an encoder: completions read the prompt, and say what the library says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import ask
from tiny_encoder_decoders import START, make_model, save_model

from headstart import LLM, SamplingParams
from headstart.loading.model import Model, load_model
from headstart_server.async_engine import AsyncEngine


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(save_model(make_model("bart"), tmp_path_factory.mktemp("bart")), "fp32")


def complete(llm: LLM, **body: Any) -> httpx.Response:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/completions", json={"temperature": 0, "max_tokens": 12, **body})

    return ask(llm, work)


def test_completions_are_those_of_the_library(served: Model) -> None:
    llm = LLM(served, "suffix")
    prompts = ["Hello world", "Once upon a time"]
    expected = [out.token_ids for out in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12))]
    reply = complete(llm, prompt=prompts, return_token_ids=True).json()
    assert [choice["token_ids"] for choice in reply["choices"]] == expected
    assert [choice["prompt_token_ids"] for choice in reply["choices"]] == [[START], [START]]
    assert reply["usage"]["prompt_tokens"] == 2 + sum(map(len, prompts))
    begun = complete(llm, prompt=prompts[0], decoder_prompt=expected[0][:3], return_token_ids=True).json()
    assert begun["choices"][0]["token_ids"][:9] == expected[0][3:]


def test_requests_that_leave_sampling_out_are_greedy(served: Model) -> None:
    llm = LLM(served, "none")
    assert llm.get_default_sampling_params().greedy
    assert "as models with an encoder are used" in llm.sampling_defaults.sentence()


def test_a_decoder_prompt_of_a_model_without_encoder_is_refused(llm: LLM) -> None:
    reply = complete(llm, prompt="x", decoder_prompt="y")
    assert reply.status_code == 400
    assert "this model has no encoder" in reply.json()["error"]["message"]


def test_languages_are_named_in_the_request(served: Model) -> None:
    llm = LLM(served, "none")
    begun = complete(llm, prompt="Hello", tgt_lang="<|im_start|>", return_token_ids=True).json()["choices"][0]
    assert begun["prompt_token_ids"] == [START, 257]
    reply = complete(llm, prompt="Hello", tgt_lang="fr")
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tgt_lang"


def test_a_prompt_that_is_too_long_is_refused(served: Model) -> None:
    reply = complete(LLM(served, "none"), prompt="x" * 200)
    assert reply.status_code == 400
    assert "the encoder reads at most 128" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"beam_width": 2, "n": 3}, "n", "more than the 2 beams"),
        ({"use_beam_search": True, "n": 3, "best_of": 2}, "n", "more than the 2 beams"),
        ({"beam_width": 9}, "beam_width", "this engine decodes 8 sequences together"),
        ({"beam_width": 2, "guided_regex": "a+"}, "guided_regex", "beam search follows no grammar"),
        ({"beam_width": 2, "response_format": {"type": "json_object"}}, "response_format", "follows no grammar"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size", "integer"),
        ({"encoder_no_repeat_ngram_size": -2}, "encoder_no_repeat_ngram_size", "must be 0 (off) or more"),
    ],
)
def test_what_does_not_go_with_beams_gets_a_sentence(
    body: dict[str, Any], field: str, message: str, served: Model
) -> None:
    reply = complete(LLM(served, "suffix", max_batch_size=8), prompt="Hello", **{"temperature": None, **body})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == field
    assert message in reply.json()["error"]["message"]


def test_a_model_that_names_no_start_token_wants_a_decoder_prompt(tmp_path: Path) -> None:
    silent = save_model(make_model("mbart", decoder_start_token_id=None, bos_token_id=None), tmp_path)
    reply = complete(LLM(silent, "none"), prompt="Hello")
    assert reply.status_code == 400
    assert "give a decoder_prompt" in reply.json()["error"]["message"]
    assert complete(LLM(silent, "none"), prompt="Hello", decoder_prompt=[START]).status_code == 200


@pytest.mark.parametrize("family", ["t5", "whisper"])
def test_a_server_rehearses_with_what_the_encoder_reads(family: str, tmp_path: Path) -> None:
    engine = AsyncEngine(LLM(save_model(make_model(family), tmp_path), "suffix", cache_tokens=512))
    engine.start()
    try:
        engine.rehearse()
    finally:
        engine.stop()
    assert engine.llm.engine.runner.encoder_passes == 1
