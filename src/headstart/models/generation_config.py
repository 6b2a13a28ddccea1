"""What a model's publisher ships for generating: sampling defaults (``generation_config.json``, a GGUF's
``general.sampling``), and what every output has to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headstart.errors import CheckpointError, ConfigError, RequestError
from headstart.models.aliases import ALIASES
from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.models.families.encoder_decoder import generation_entries
from headstart.models.families.fields import Fields
from headstart.models.files import read_json
from headstart.sampling.defaults import MODEST, SHAPING, SamplingDefaults

AUTO = "auto"
NONE = ("none", "vllm")
"""vLLM has its own name for "the engine's neutral values"."""
FILE_NAME = "generation_config.json"

_SAME = ("repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size")
_JSON_NAMES = {name: name for name in (*SHAPING, *_SAME)} | {"max_new_tokens": "max_tokens"}
_GGUF_NAMES = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Keys of llama.cpp (``gguf-py/gguf/constants.py``); the samplers that Headstart lacks are left out."""
_LAST_N = "general.sampling.penalty_last_n"


@dataclass(frozen=True)
class OutputDemands:
    """What a model's files demand of every output, whatever a request asks for, as transformers' generate does."""

    never: tuple[tuple[int, ...], ...] = ()
    """Sequences of tokens that are never said (``bad_words_ids``, ``suppress_tokens``)."""
    never_first: tuple[int, ...] = ()
    """Tokens that no output begins with (``begin_suppress_tokens``)."""
    first: int | None = None
    """What the output begins with after a prompt of one token (``forced_bos_token_id``)."""
    last: int | None = None
    """What an output ends with that is as long as it may be (``forced_eos_token_id``)."""


NO_DEMANDS = OutputDemands()


def output_demands(checkpoint: Checkpoint, config: ModelConfig) -> OutputDemands:
    """What a model's files demand; ``config``: of the model, which knows where it has an encoder.

    Raises:
        CheckpointError: an entry is no token, or no list of tokens.
    """
    encoder = config.encoder
    if encoder is not None:
        # What its outputs begin with is a part of the decoder's prompt.
        return OutputDemands(encoder.never, encoder.never_first, None, encoder.forced_last_token_id)
    if checkpoint.kind != "hf":
        return NO_DEMANDS
    entries = generation_entries(Fields(checkpoint.metadata, f"{checkpoint.path}: config.json and {FILE_NAME}"))
    return OutputDemands(
        entries["never"], entries["never_first"], entries["forced_first_token_id"], entries["forced_last_token_id"]
    )


def named_file(generation_config: str | Path) -> Path | None:
    """The file that is asked for; None for ``auto``, ``none`` and ``vllm``.

    Raises:
        ConfigError: there is no such file.
    """
    if str(generation_config) in (AUTO, *NONE):
        return None
    path = Path(generation_config).expanduser()
    path = path / FILE_NAME if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"generation_config is {str(generation_config)!r}, which is no file or folder with a {FILE_NAME}; give "
            "one, auto (the model's own) or none."
        )
    return path


def sampling_defaults(checkpoint: Checkpoint, generation_config: str | Path = AUTO) -> SamplingDefaults:
    """What a request gets that leaves sampling parameters out.

    ``generation_config``: ``auto``: what the model's publisher says, else modest values; ``none`` (or ``vllm``):
    ``SamplingParams()``; or a ``generation_config.json``, or the folder that holds one.

    Raises:
        ConfigError: there is no such file.
        CheckpointError: a value of the file is out of range.
    """
    if str(generation_config) in NONE:
        return SamplingDefaults()
    path = named_file(generation_config)
    if path is None and checkpoint.kind == "gguf":
        stated, source = _of_gguf(checkpoint.metadata), f"{checkpoint.path.name}"
    else:
        path = path or checkpoint.path / FILE_NAME
        stated, source = (_of_json(read_json(path)) if path.is_file() else {}), FILE_NAME
    fallback: Mapping[str, Any] = {}
    if not any(name in stated for name in SHAPING):
        alias = ALIASES.get(checkpoint.name)
        fallback = alias.sampling if alias is not None else MODEST
        reason = "its publisher's advice" if alias is not None else "the model says nothing"
        if checkpoint.metadata.get("is_encoder_decoder") is True:
            # Made to translate, summarise or transcribe: transformers' generate does not draw unless told to.
            fallback, reason = {"temperature": 0.0}, "as models with an encoder are used"
        source = f"{source}; {reason}" if stated else reason
    try:
        return SamplingDefaults(stated, fallback, source)
    except RequestError as error:
        raise CheckpointError(
            f"{path or checkpoint.path}: {error.field} is a sampling default that cannot be had: {error!s:.200} Mend "
            "the file, or go without with generation_config none."
        ) from error


def _of_json(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {own: config[name] for name, own in _JSON_NAMES.items() if config.get(name) is not None}
    if config.get("do_sample") is False:
        # As transformers' generate reads it, whatever else the file holds.
        found["temperature"] = 0.0
    if isinstance(found.get("top_k"), float) and found["top_k"].is_integer():
        found["top_k"] = int(found["top_k"])
    return found


def _of_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """As llama.cpp reads them: a temperature below 0 is greedy, a top-k below 1 and a top-p of 1 or more cut nothing,
    and a penalty over the last 0 tokens is none."""
    found = {own: metadata[key] for key, own in _GGUF_NAMES.items() if key in metadata}
    for name, value in found.items():
        if isinstance(value, float):
            # Stored in 32 bits: 0.7 was meant, not 0.699999988.
            found[name] = value = float(str(np.float32(value)))
        if isinstance(value, int | float) and not isinstance(value, bool):
            if name in ("temperature", "top_k", "min_p"):
                found[name] = max(value, 0)
            elif name == "top_p":
                found[name] = min(value, 1.0)
    if metadata.get(_LAST_N) == 0:
        found.pop("repetition_penalty", None)
    return found
