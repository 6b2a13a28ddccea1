"""Damage to files, as transfers and disks do it and as an attacker might."""

from __future__ import annotations

import copy
import random
import struct
from typing import Any


def mutate(raw: bytes, rng: random.Random) -> bytes:
    """The bytes with one to four flips, overwrites, deletions or insertions."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        if not data:
            break
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                data[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << rng.randrange(64))])
            case 3:
                del data[at : at + rng.randint(1, 16)]
            case 4:
                data[at:at] = rng.randbytes(rng.randint(1, 16))
    return bytes(data)


def mutate_text(raw: bytes, rng: random.Random) -> bytes:
    """The bytes of a JSON file with a few changes that often leave it JSON: other digits, words, brackets."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.choice(b'0123456789-{}[]":,ae ')
            case 1:
                del data[at : at + rng.randint(1, 6)]
            case 2:
                data[at:at] = rng.choice([b"9" * 30, b"null", b"-1", b"[", b"{}", b"\\u0000", b"\xc3"])
            case 3:
                other = rng.randrange(len(data))
                data[at:at] = data[other : other + 20]
    return bytes(data)


STRANGE = [
    *(0, -1, 1, 2**31, 2**63 - 1, 1.5, -0.5, float("inf"), float("nan")),
    *("", "text", "\x00", "x" * 5000, True, False, None),
    *([], {}, [[]], ["a", "b"], [1, -1], [0.5], [None], {"a": {"b": []}}),
]
"""Values of every type that JSON has, few of which make sense anywhere."""


def mutate_value(value: Any, rng: random.Random) -> Any:
    """A JSON value of which one part, anywhere in it, is gone, strange, or in another place."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(STRANGE)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = rng.choice(keys)
    changed = copy.copy(value)
    match rng.randrange(8):
        case 0:
            del changed[key]
        case 1:
            changed[key] = value[rng.choice(keys)]
        case _:
            changed[key] = mutate_value(value[key], rng)
    return changed
