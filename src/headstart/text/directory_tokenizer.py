"""Reading the tokenizer of a Hugging Face directory: ``tokenizer.json`` and the settings beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from headstart.errors import CheckpointError
from headstart.models.files import read_json, read_text
from headstart.text.marian_tokenizer import has_two_vocabularies, marian_tokenizer
from headstart.text.older_tokenizers import converted_tokenizer
from headstart.text.tokenizer_faults import MOST_GROWTH, contained, growth
from headstart.text.tokenizer_parts import TokenizerParts

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_directory_tokenizer(directory: Path, config: Mapping[str, Any]) -> TokenizerParts:
    """The tokenizer of a directory whose model has this ``config`` (it says what ends a sequence); without a
    tokenizer.json, what transformers makes of older files.

    What stands around a text is what tokenizer.json puts there; ``add_bos_token`` and ``add_eos_token`` of
    tokenizer_config.json are for tokenizers made anew, here as in transformers 5.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    path = directory / "tokenizer.json"
    if path.exists():
        return _parts(read_text(path), read_json(path), directory, config)
    text = converted_tokenizer(directory)
    parts = _parts(text, json.loads(text), directory, config)
    if not has_two_vocabularies(directory):
        return parts
    read = marian_tokenizer(directory)
    return replace(parts, source=_parts(read, json.loads(read), directory, config))


def _parts(text: str, description: Mapping[str, Any], directory: Path, config: Mapping[str, Any]) -> TokenizerParts:
    """``text``: what tokenizer.json holds, or would hold; ``description``: the same, read."""
    path = directory / "tokenizer.json"
    multiplies = growth(description)
    if multiplies > MOST_GROWTH:
        raise CheckpointError(
            f"{path} may make {multiplies:.3g} bytes of one byte of text, above the limit of {MOST_GROWTH:.0f}; fetch "
            "it again, or check its normalizer."
        )
    with contained(lambda reason: CheckpointError(f"{path} is not a valid tokenizer ({reason}); fetch it again.")):
        backend: Backend = Backend.from_str(text)
    settings = read_settings(directory)
    special_tokens = directory_special_tokens(settings)
    _mark_special_tokens(backend, special_tokens.values())
    eos_ids = _end_of_sequence(config, source=directory)
    own_eos = backend.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return TokenizerParts(backend, special_tokens, eos_ids or (() if own_eos is None else (own_eos,)), multiplies)


def read_settings(directory: Path) -> dict[str, Any]:
    """``tokenizer_config.json``, and ``special_tokens_map.json`` for what that leaves open.

    Raises:
        CheckpointError: one of them is damaged.
    """
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).exists():
            settings |= read_json(directory / name)
    return settings


def directory_special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Role -> spelling."""
    values = {role: settings.get(role) for role in _ROLES}
    spellings = {role: value.get("content") if isinstance(value, dict) else value for role, value in values.items()}
    return {role: spelling for role, spelling in spellings.items() if isinstance(spelling, str)}


def _mark_special_tokens(backend: Backend, spellings: Iterable[str]) -> None:
    """Make these special tokens of the backend, unless they would need a new id, outside of the model's embedding."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    for spelling in spellings:
        if spelling not in added and backend.token_to_id(spelling) is not None:
            backend.add_special_tokens([AddedToken(spelling, special=True, normalized=False)])


def _end_of_sequence(config: Mapping[str, Any], source: Path) -> tuple[int, ...]:
    value = config.get("eos_token_id")
    token_ids = value if isinstance(value, list) else [] if value is None else [value]
    for token_id in token_ids:
        if not isinstance(token_id, int) or isinstance(token_id, bool) or token_id < 0:
            raise CheckpointError(f"{source}: eos_token_id is {value!r:.60}; it must be a token id or a list of them.")
    return tuple(token_ids)
