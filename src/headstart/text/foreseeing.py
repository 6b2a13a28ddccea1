"""What a grammar leaves no choice about: the text that has to come next, as the tokens that it is usually cut into.

Where white space between the tokens of JSON is the only choice, it is guessed to be what the output has had in such
places. These are guesses like any others: the target may cut the text otherwise, or want other white space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLANK = b" \t\r\n"
_SPECIAL = re.compile(rb"\xff\[(\d+)\]")
"""How llguidance writes a special token among bytes."""
_MOST_STEPS = 16
"""Of one look ahead."""
_MOST_UNSURE = 6
"""Tokens that are foreseen as long as the output's white space is not known."""
_LONGEST_BLANK = 64
_MANY = 4096
"""Tokens that follow where a text goes on as it likes."""
NO_BYTE = 256
"""Stands for the first byte of a special token."""


class BlankHabits:
    """White space that an output has had between the tokens of its JSON."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, int], bytes] = {}
        """Byte before and byte behind -> what stood between them last, in one line."""
        self._lines: list[bool | None] = [None]
        """[0] whether values and keys begin lines; None: not known. Shared by copies, like the two others."""
        self._indent: list[int] = [2]
        self._quoted = self._escaped = False
        self._depth = 0
        self._last = 0
        """The last byte that was no white space."""
        self._blank = b""

    def copy(self) -> BlankHabits:
        """One that reads on by itself; what it learns this one does not know."""
        made = BlankHabits()
        made.__dict__.update(self.__dict__)
        made._after, made._lines, made._indent = dict(self._after), self._lines.copy(), self._indent.copy()
        return made

    def read(self, text: bytes) -> None:
        """What has come of the output."""
        for sign in text:
            if self._quoted:
                self._quoted = sign != 0x22 or self._escaped
                self._escaped = sign == 0x5C and not self._escaped
                self._last = sign
            elif sign in BLANK:
                if len(self._blank) < _LONGEST_BLANK:
                    self._blank += bytes([sign])
            else:
                self._depth -= sign in b"}]"
                self._learn(sign)
                self._blank, self._last = b"", sign
                self._quoted, self._escaped = sign == 0x22, False
                self._depth += sign in b"{["

    def _learn(self, sign: int) -> None:
        self._after[self._last, _kind(sign)] = self._blank
        if self._last in b"{,[" and sign not in b"}]":
            self._lines[0] = b"\n" in self._blank
            width = len(self._blank.rpartition(b"\n")[2])
            if self._lines[0] and self._depth and width % self._depth == 0:
                self._indent[0] = width // self._depth

    @property
    def sure(self) -> bool:
        """Whether it is known what stands at a place like this one."""
        return self._lines[0] is not None

    def expected(self, sign: int) -> bytes:
        """What will stand before this byte, less what stands there already."""
        if self._quoted:
            return b""
        found = self._whole(sign)
        return found[len(self._blank) :] if found.startswith(self._blank) else b""

    def _whole(self, sign: int) -> bytes:
        closes = sign in b"}]"
        known = self._after.get((self._last, _kind(sign)))
        if (self._last in b"{,[" or closes) and (self._lines[0] or b"\n" in self._blank):
            if known is not None and b"\n" not in known:
                return known
            return b"\n" + b" " * (self._indent[0] * (self._depth - closes))
        if known is not None:
            return known
        return b" " if self._last in b":," else b""


def _kind(sign: int) -> int:
    """Values are alike whatever they begin with."""
    return sign if sign in b"}],:" else 0


class Foresight:
    """Looks ahead in a grammar.

    Args:
        encode: cuts a text into tokens.
        spell: a token's bytes.
        greedy: cuts a text into the longest tokens, for what ``encode`` changes.
        first_bytes: [vocab] the first byte of each token, ``NO_BYTE`` of special ones.
    """

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        spell: Callable[[int], bytes],
        greedy: Callable[[bytes], list[int]],
        first_bytes: NDArray[np.int16],
    ) -> None:
        self._encode = encode
        self.spell = spell
        self._greedy = greedy
        self._first_bytes = first_bytes

    def tokens(self, matcher: Any, habits: BlankHabits, most: int) -> list[int]:
        """At most so many tokens that have to come, or nearly; ``matcher`` and ``habits`` are used up."""
        text, found = b"", list[int]()
        if not habits.sure:
            most = min(most, _MOST_UNSURE)
        for _ in range(_MOST_STEPS):
            forced: bytes = matcher.compute_ff_bytes()
            if not forced:
                forced = self._over_blank(matcher, habits)
            if not forced or len(found) + len(text) // 8 > most:
                break
            for place, part in enumerate(_SPECIAL.split(forced)):
                special = place % 2
                cut = [int(part)] if special else self._cut(part)
                if not cut:
                    continue
                if not matcher.consume_tokens(cut):
                    return [*found, *self._cut(text)][:most]
                if special:
                    found += [*self._cut(text), *cut]
                    text = b""
                else:
                    habits.read(part)
                    text += part
        return [*found, *self._cut(text)][:most]

    def _firsts(self, matcher: Any) -> list[int]:
        """The first bytes of all tokens that may follow; none where there are too many to be worth a look."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=len(self._first_bytes), bitorder="little").view(np.bool_)
        if np.count_nonzero(allowed) > _MANY:
            return []
        return np.flatnonzero(np.bincount(self._first_bytes[allowed], minlength=1)).tolist()

    def _over_blank(self, matcher: Any, habits: BlankHabits) -> bytes:
        """White space and the byte that has to follow it; empty: there are others."""
        if matcher.is_error() or matcher.is_stopped():
            return b""
        firsts = self._firsts(matcher)
        signs = [sign for sign in firsts if sign == NO_BYTE or sign not in BLANK]
        if len(signs) != 1 or signs[0] == NO_BYTE or len(signs) == len(firsts):
            return b""
        (sign,) = signs
        for blank in (habits.expected(sign), b""):
            text = blank + bytes([sign])
            cut = self._cut(text)
            if cut and matcher.validate_tokens(cut) == len(cut):
                return text
        return b""

    def _cut(self, text: bytes) -> list[int]:
        """The tokens of a text whose last character may be unfinished."""
        if not text:
            return []
        try:
            cut = self._encode(text.decode())
        except UnicodeDecodeError:
            return self._greedy(text)
        whole = b"".join([self.spell(token) for token in cut])
        return cut if whole == text else self._greedy(text)


def first_bytes(spellings: Sequence[bytes], special: Sequence[int]) -> NDArray[np.int16]:
    """[vocab] the first byte of each token, ``NO_BYTE`` of special and empty ones."""
    found = np.array([spelt[0] if spelt else NO_BYTE for spelt in spellings], dtype=np.int16)
    found[list(special)] = NO_BYTE
    return found
