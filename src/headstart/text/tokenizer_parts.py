"""What the readers of tokenizer files hand over, whatever the kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers import processors


@dataclass(frozen=True)
class TokenizerParts:
    backend: Backend
    special_tokens: Mapping[str, str]
    """Role ("bos_token", "eos_token", "unk_token", "pad_token", ...) -> spelling."""
    eos_token_ids: tuple[int, ...]
    """What ends a sequence."""
    growth: float = 1.0
    """Bytes that a byte of text may become on its way to tokens."""
    source: TokenizerParts | None = None
    """What cuts texts for an encoder whose vocabulary is another than the decoder's."""


def set_affixes(backend: Backend, prefix: int | None, suffix: int | None) -> None:
    """Have ``encode(..., add_special_tokens=True)`` put these tokens, and no others, around every text."""
    around = {"PREFIX": prefix, "SUFFIX": suffix}
    used = {name: token_id for name, token_id in around.items() if token_id is not None}
    backend.post_processor = processors.TemplateProcessing(
        single=[name for name in ("PREFIX", "$A", "SUFFIX") if name == "$A" or name in used],
        special_tokens=[
            {"id": name, "ids": [token_id], "tokens": [backend.id_to_token(token_id)]}
            for name, token_id in used.items()
        ],
    )
