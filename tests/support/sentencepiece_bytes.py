"""Files of sentencepiece models, written field by field."""

from __future__ import annotations

import struct
from collections.abc import Mapping


def varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def piece(text: str, score: float, kind: int) -> bytes:
    return message(1, message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))


def model_bytes(scores: Mapping[str, float], kind: int = 1) -> bytes:
    """Control and unknown pieces, those with scores, a trainer's kind, a normalizer without a table."""
    pieces = piece("<unk>", 0, 2) + piece("</s>", 0, 3) + b"".join(piece(text, s, 1) for text, s in scores.items())
    return pieces + message(2, b"\x18" + varint(kind)) + message(3, message(1, b"identity"))
