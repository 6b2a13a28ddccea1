"""What one token contributes to the text, in bytes.

The decoders of language models are, at heart, a table from tokens to bytes: the text is the concatenation, read
as UTF-8. Seen this way, decoding a sequence in pieces cannot differ from decoding it whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from headstart.errors import CheckpointError
from headstart.text.tokenizer_faults import MOST_GROWTH, replacing


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE (GPT-2's ``bytes_to_unicode``, inverted).

    Printable Latin-1 characters stand for themselves; the others are numbered from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = _byte_alphabet()


class TokenBytes:
    """A decoder of the ``tokenizers`` library, as a function from token to bytes.

    ``leading_spaces``: how many spaces at the very start of a text are dropped (SentencePiece's dummy prefix).

    Raises:
        CheckpointError: the decoder cannot be put in this form.
    """

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        self.leading_spaces = 0
        self._replacements: list[tuple[str, str]] = []
        self._byte_level = False
        self._byte_fallback = False
        self._joined_by_spaces = decoder is None
        if decoder is None:
            self.leading_spaces = 1
            return
        for step in _steps(decoder):
            self._add(step)
        multiplies = math.prod(replacing(old, new) for old, new in self._replacements)
        if multiplies > MOST_GROWTH:
            raise CheckpointError(
                f"the tokenizer's decoder may make {multiplies:.3g} bytes of one byte of a token, above the limit of "
                f"{MOST_GROWTH:.0f}; fetch it again."
            )

    @classmethod
    def of(cls, backend: Backend) -> TokenBytes:
        """The form of a backend's own decoder."""
        return cls(None if backend.decoder is None else json.loads(backend.decoder.__getstate__()))

    def __call__(self, token: str) -> bytes:
        if self._joined_by_spaces:
            return b" " + token.encode()
        for old, new in self._replacements:
            token = token.replace(old, new)
        if self._byte_fallback and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return token.encode()
        if self._byte_level and all(character in BYTE_ALPHABET for character in token):
            return bytes(BYTE_ALPHABET[character] for character in token)
        return token.encode()

    def _add(self, step: Mapping[str, Any]) -> None:
        match step:
            case {"type": "ByteLevel"}:
                self._byte_level = True
            case {"type": "ByteFallback"}:
                self._byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self._replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": (0 | 1) as start, "stop": 0}:
                self.leading_spaces = start
            case {"type": "Metaspace", "replacement": str(mark), "prepend_scheme": str(scheme)}:
                self._replacements.append((mark, " "))
                self.leading_spaces = 0 if scheme == "never" else 1
            case _:
                raise CheckpointError(
                    f"the tokenizer's decoder has a step {json.dumps(step)}, which is not supported; "
                    "use a byte-level or SentencePiece-like tokenizer."
                )


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder
