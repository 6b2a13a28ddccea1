"""The defaults of requests that leave sampling out: what files say of them, and how a request and they become one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
from tiny_checkpoint import write_tiny_model

from headstart import LLM, SamplingParams
from headstart.errors import CheckpointError, ConfigError, RequestError
from headstart.models.aliases import ALIASES, DEFAULT_MODEL
from headstart.models.checkpoint import open_checkpoint
from headstart.models.generation_config import sampling_defaults
from headstart.sampling.defaults import MODEST, SamplingDefaults

QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


def of_folder(folder: Path, config: Mapping[str, Any] | None, choice: str | Path = "auto") -> SamplingDefaults:
    if config is not None:
        (folder / "generation_config.json").write_text(json.dumps(config))
    checkpoint = SimpleNamespace(kind="hf", name=str(folder), path=folder, metadata={})
    return sampling_defaults(checkpoint, choice)  # type: ignore[arg-type]


def of_gguf(name: str = "x.gguf", **values: Any) -> SamplingDefaults:
    metadata = {f"general.sampling.{key}": value for key, value in values.items()}
    checkpoint = SimpleNamespace(kind="gguf", name=name, path=Path("x.gguf"), metadata=metadata)
    return sampling_defaults(checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "params"),
    [
        (QWEN, SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)),
        ({"top_k": 64, "top_p": 0.95}, SamplingParams(top_k=64, top_p=0.95)),
        (
            {"temperature": 0.6, "top_k": None, "min_p": 0.05, "top_p": None},
            SamplingParams(temperature=0.6, min_p=0.05),
        ),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, SamplingParams(temperature=0, top_p=0.9)),
        ({"max_new_tokens": 2048, "temperature": 1.0}, SamplingParams(max_tokens=2048)),
        ({"eos_token_id": 2, "repetition_penalty": 1.2}, SamplingParams(**MODEST, repetition_penalty=1.2)),
        ({"top_k": 50.0}, SamplingParams(top_k=50)),
        ({}, SamplingParams(**MODEST)),
        (None, SamplingParams(**MODEST)),
    ],
    ids=str,
)
def test_a_folder_says_it_in_its_generation_config(
    tmp_path: Path, config: Mapping[str, Any] | None, params: SamplingParams
) -> None:
    assert of_folder(tmp_path, config).params({}) == params
    assert of_folder(tmp_path, config, "none").params({}) == SamplingParams()
    assert of_folder(tmp_path, config, "vllm").params({}) == SamplingParams()


@pytest.mark.parametrize(
    ("values", "params"),
    [
        # As a GGUF keeps them: numbers of 32 bits.
        (
            {"temp": 0.699999988079071, "top_p": 0.800000011920929, "top_k": 20, "penalty_repeat": 1.0499999523162842},
            SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
        ),
        ({"temp": -1.0}, SamplingParams(temperature=0)),
        ({"top_k": 0, "top_p": 1.5, "temp": 1.0}, SamplingParams()),
        ({"temp": 1.0, "penalty_repeat": 1.5, "penalty_last_n": 0}, SamplingParams()),
        ({"mirostat": 2}, SamplingParams(**MODEST)),
        ({}, SamplingParams(**MODEST)),
    ],
    ids=str,
)
def test_a_gguf_says_it_in_its_metadata(values: dict[str, Any], params: SamplingParams) -> None:
    assert of_gguf(**values).params({}) == params


def test_the_keys_are_those_that_converters_write(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_sampling_temp(0.7)
    writer.add_sampling_top_p(0.8)
    writer.add_sampling_top_k(20)
    writer.add_sampling_min_p(0.01)
    writer.add_sampling_penalty_repeat(1.05)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    wanted = SamplingParams(temperature=0.7, top_p=0.8, top_k=20, min_p=0.01, repetition_penalty=1.05)
    defaults = sampling_defaults(open_checkpoint(path))
    assert defaults.params({}) == wanted
    assert "temperature 0.7, top_k 20, top_p 0.8" in defaults.sentence()
    assert "model.gguf" in defaults.sentence()


def test_a_model_with_a_short_name_has_its_cards_advice() -> None:
    assert of_gguf(DEFAULT_MODEL).params({}) == SamplingParams(**ALIASES[DEFAULT_MODEL].sampling)
    assert of_gguf(DEFAULT_MODEL, temp=1.5).params({}) == SamplingParams(temperature=1.5)


def test_another_file_can_be_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text(json.dumps(QWEN))
    for choice in (other, other / "generation_config.json"):
        assert of_folder(tmp_path, {"temperature": 0.1}, choice).params({}).temperature == 0.7
    with pytest.raises(ConfigError, match="generation_config is '/no/such'"):
        of_folder(tmp_path, None, "/no/such")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 2.5}, "top_k"),
        ({"min_p": [0.1]}, "min_p"),
        ({"max_new_tokens": 0}, "max_tokens"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
    ],
)
def test_what_cannot_be_had_is_one_sentence_with_the_mend(
    tmp_path: Path, config: Mapping[str, Any], field: str
) -> None:
    with pytest.raises(CheckpointError, match=f"generation_config.json: {field} .*generation_config none"):
        of_folder(tmp_path, config)


def test_a_request_wins_field_by_field() -> None:
    stated = SamplingDefaults({"temperature": 0.7, "top_p": 0.8, "max_tokens": 9}, {})
    assert stated.params({"temperature": 0}) == SamplingParams(temperature=0, top_p=0.8, max_tokens=9)
    assert stated.params({"top_p": 1.0}).top_p == 1
    assert stated.params({"max_tokens": None}).max_tokens is None
    assert stated.params({"min_tokens": 30}).max_tokens == 30
    assert stated.params({}, {"max_tokens": 16}).max_tokens == 9
    assert SamplingDefaults().params({}, {"max_tokens": 16}).max_tokens == 16
    with pytest.raises(RequestError, match="min_tokens is 30, above max_tokens 20"):
        stated.params({"min_tokens": 30, "max_tokens": 20})


@pytest.mark.parametrize("given", [{"temperature": 1.0}, {"top_p": 0.5}, {"top_k": 3}, {"min_p": 0.0}], ids=str)
def test_modest_values_never_mix_with_a_requests_own(given: dict[str, Any]) -> None:
    """Who asks for a law gets that law: a temperature alone cuts nothing off."""
    assert SamplingDefaults({}, MODEST).params(given) == SamplingParams(**given)
    assert SamplingDefaults({}, MODEST).params({"seed": 1}) == SamplingParams(**MODEST, seed=1)


def test_the_library_uses_them_where_no_parameters_are_given(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path)
    (model / "generation_config.json").write_text('{"do_sample": false, "repetition_penalty": 1.3}')
    llm = LLM(model, "none", precision="fp32")
    wanted = SamplingParams(temperature=0, repetition_penalty=1.3)
    assert llm.get_default_sampling_params() == wanted
    (said,), (expected,) = llm.generate("abc"), llm.generate("abc", wanted)
    assert said.token_ids == expected.token_ids
    assert "".join(map(str, llm.stream("abc"))) == expected.text
    chat = [{"role": "user", "content": "hi"}]
    assert llm.chat(chat)[0].text == llm.chat(chat, wanted)[0].text
    assert LLM(model, "none", generation_config="none").get_default_sampling_params() == SamplingParams()
    with pytest.raises(ConfigError, match="generation_config"):
        LLM("/no/such/model", generation_config="/no/such/file")
