"""Translation models through the front door: vocabularies of their own for each side, and languages by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece_bytes import model_bytes
from thinning import thorough_but
from tiny_encoder_decoders import START, make_model, name_languages, reference_tokens, save_model
from transformers import PreTrainedModel

from headstart import LLM, RequestError, SamplingParams
from headstart.drafting.registry import available_drafters

GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPTS = ["abc abc", "cab", "a b c a b c a b c"]
SOURCE = {"▁": -3.0, "▁a": -2.0, "a": -4.0, "b": -4.0, "ab": -3.5, "▁ab": -5.0, "c": -6.0}
WIDE = 300
"""Tokens of the source, more than of the target."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


VOCABULARIES = {"share_encoder_decoder_embeddings": False, "vocab_size": WIDE, "decoder_vocab_size": 259}
TOKENS = {"decoder_start_token_id": 258, "eos_token_id": 0}


@pytest.fixture(scope="module")
def marian() -> PreTrainedModel:
    return make_model("marian", **VOCABULARIES, **TOKENS)


def small_marian() -> PreTrainedModel:
    return make_model("marian", seed=4, encoder_layers=1, decoder_layers=1, **VOCABULARIES, **TOKENS)


@pytest.fixture(scope="module")
def apart(marian: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_vocabularies(marian, tmp_path_factory.mktemp("marian"))


def with_vocabularies(model: PreTrainedModel, directory: Path) -> Path:
    """A Marian of two vocabularies, whose pieces have the highest ids of the source."""
    path = save_model(model, directory)
    (path / "tokenizer.json").unlink()
    fill = [f"[{place}]" for place in range(WIDE)]
    source = ["</s>", "<unk>", *fill[: WIDE - 3 - len(SOURCE)], *SOURCE, "<pad>"]
    target = {f"▁{chr(65 + place)}": -1.0 - place for place in range(20)}
    listed = ["</s>", "<unk>", *target, *fill[: 259 - 3 - len(target)], "<pad>"]
    for names, scores, tokens in (
        (("source.spm", "vocab.json"), SOURCE, source),
        (("target.spm", "target_vocab.json"), target, listed),
    ):
        (path / names[0]).write_bytes(model_bytes(scores))
        (path / names[1]).write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
    settings = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "separate_vocabs": True}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_two_vocabularies_decode_as_in_transformers(marian: PreTrainedModel, apart: Path) -> None:
    llm = LLM(apart, "none")
    for output in llm.generate(PROMPTS, GREEDY):
        read = output.encoder_prompt_token_ids
        assert max(read) > 259
        assert read[-1] == 0
        assert output.token_ids == reference_tokens(marian, read, 20)
        assert output.text == llm.get_tokenizer().decode(output.token_ids)
    with pytest.raises(RequestError, match=f"token {WIDE}; its encoder's ids go from 0 to {WIDE - 1}"):
        llm.generate({"encoder_prompt": [WIDE]}, GREEDY)
    with pytest.raises(RequestError, match="token 260; this model's ids go from 0 to 258"):
        llm.generate({"encoder_prompt": "a", "decoder_prompt": [260]}, GREEDY)


@pytest.mark.parametrize(
    "name",
    thorough_but(
        ["copy", "draft-model"], ["auto", "copy", "suffix", "prompt-lookup", "ngram", "early-exit", "draft-model"]
    ),
)
def test_nothing_is_copied_from_a_vocabulary_that_the_decoder_does_not_speak(
    name: str, marian: PreTrainedModel, apart: Path, tmp_path: Path
) -> None:
    assert name in available_drafters()
    options: dict[str, object] = {"early-exit": {"layers": 1}}.get(name, {})
    if name == "draft-model":
        options = {"model": str(with_vocabularies(small_marian(), tmp_path))}
    llm = LLM(apart, name, drafter_options=options)
    for params in (GREEDY, SamplingParams(temperature=0.8, seed=3, max_tokens=20)):
        expected = LLM(apart, "none").generate(PROMPTS, params)
        outputs = llm.generate(PROMPTS, params)
        if params is GREEDY or all(output.stats.sampled_rounds == 0 for output in outputs):
            assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    llm.engine.check()


@pytest.fixture(scope="module")
def speaking(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    """With NLLB's spelling of languages in place of three bytes, the English one before every text."""
    model = make_model("m2m-100")
    path = save_model(model, tmp_path_factory.mktemp("nllb"))
    name_languages(path, ["eng_Latn", "fra_Latn", "deu_Latn"])
    return model, path


def test_languages_are_chosen_by_name(speaking: tuple[PreTrainedModel, Path]) -> None:
    model, path = speaking
    llm = LLM(path, "suffix")
    text = list(b"Hello")

    def said(**beside: Any) -> list[int]:
        (output,) = llm.generate({"encoder_prompt": "Hello", **beside}, GREEDY)
        return [*output.prompt_token_ids[1:], *output.token_ids]

    assert said() == reference_tokens(model, [1, *text], 20)
    assert said(tgt_lang="fra_Latn") == reference_tokens(model, [1, *text], 21, forced_bos_token_id=2)
    both = reference_tokens(model, [3, *text], 21, forced_bos_token_id=2)
    assert said(src_lang="deu_Latn", tgt_lang="fra_Latn") == both
    assert said(src_lang="deu_Latn", tgt_lang="fra_Latn", decoder_prompt=both[1:4])[:20] == both[:20]
    assert said(tgt_lang="fra_Latn", decoder_prompt=[START])[:3] == said(tgt_lang="fra_Latn")[:3]


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"tgt_lang": "fra_Latin"}, "did you mean 'fra_Latn'"),
        ({"src_lang": "klingon"}, "src_lang is 'klingon'"),
        ({"tgt_lang": 7}, "tgt_lang is 7; give the name of a language"),
    ],
)
def test_languages_that_are_not_there_get_a_sentence(
    beside: dict[str, Any], message: str, speaking: tuple[PreTrainedModel, Path]
) -> None:
    with pytest.raises(RequestError, match=message):
        LLM(speaking[1], "none").generate({"encoder_prompt": "x", **beside}, GREEDY)


def test_a_model_without_languages_says_so(tmp_path: Path) -> None:
    llm = LLM(save_model(make_model("bart"), tmp_path), "none")
    with pytest.raises(RequestError, match="no token for"):
        llm.generate({"encoder_prompt": "x", "src_lang": "fra_Latn"}, GREEDY)
