"""What a tokenizer from a stranger may do to the library that runs it.

Regular expressions can run away, which ends in a panic of the library; steps that replace text can multiply it until
memory ends. The first is caught, the second reckoned from the file before anything of it runs.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headstart.errors import HeadstartError

MOST_GROWTH = 1024.0
"""Bytes that a byte of text may become on its way to tokens, at most. Reckoned for the worst of all texts: 3 for
Llama's mark for a space, about 500 for SentencePiece's Unicode tables."""
_HARMLESS_GROWTH = 32.0
_MOST_BYTES = 1 << 25
"""Of a text that may have grown by more than that; the library takes some hundred bytes for each."""
_MOST_PIECES = 64
"""Around a text."""
_GROWTH = {"NFC": 3.0, "NFD": 3.0, "NFKC": 12.0, "NFKD": 12.0, "Lowercase": 1.5, "BertNormalizer": 3.0} | {
    "ByteLevel": 2.0,
    "Metaspace": 4.0,
}
"""Of steps that are the same in every file."""


@contextmanager
def contained(refusal: Callable[[str], HeadstartError]) -> Iterator[None]:
    """What the library raises, panics included, as the error that ``refusal`` makes of its reason."""
    try:
        yield
    except HeadstartError:
        raise
    except BaseException as error:
        # A panic is no Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise refusal(lines[0][:200].rstrip(".")) from None


def growth(description: Mapping[str, Any]) -> float:
    """Bytes that a byte of text may become at most, by the contents of a tokenizer.json."""
    steps = (description.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor"))
    return math.prod(map(_growth, steps))


def outgrows(growth: float, text: str) -> bool:
    """Whether a text might take too much memory on its way to tokens."""
    return growth > _HARMLESS_GROWTH and growth * len(text.encode()) > _MOST_BYTES


def replacing(old: str, new: str) -> float:
    """Growth by a replacement."""
    # What matches nothing is found before every byte.
    return max(1.0, len(new.encode()) / len(old.encode())) if old else 1.0 + len(new.encode())


def _growth(step: Any) -> float:
    match step:
        case {"type": "Sequence"}:
            parts = next((step[key] for key in ("normalizers", "pretokenizers", "processors") if key in step), ())
            return math.prod(map(_growth, parts)) if isinstance(parts, list) else 1.0
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return replacing(old, new)
        case {"type": "Replace", "content": str(new)} | {"type": "Prepend", "prepend": str(new)}:
            return replacing("", new)
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_entry(table)
        case {"type": "TemplateProcessing", "single": list(pieces)}:
            texts = sum(isinstance(piece, dict) and "Sequence" in piece for piece in pieces)
            return math.inf if len(pieces) > _MOST_PIECES else max(1.0, texts)
        case {"type": str(kind)}:
            return _GROWTH.get(kind, 1.0)
    return 1.0


def _longest_entry(table: str) -> float:
    """Of SentencePiece's table of replacements: the size of a trie, the trie, and texts that end with a zero."""
    try:
        raw = base64.b64decode(table)
    except (binascii.Error, ValueError):
        return 1.0  # the library refuses it
    texts = raw[4 + int.from_bytes(raw[:4], "little") :]
    return float(max(map(len, texts.split(b"\0")), default=1) or 1)
