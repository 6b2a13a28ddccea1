"""A text that grows, as generators read it: each asks for more with ``yield``, so that nothing is read twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
"""Reads on whenever more has come, and returns what it has read."""
Say = Callable[[str], None]
"""Takes what was read, piece by piece."""
_BLANK = re.compile(r"[ \t\r\n]*+")
LONGEST_NAME = 256
"""Characters of a function's or a parameter's name."""


class NotCalls(Exception):
    """A text is not, and does not become, a call in some form."""


class Source:
    """What has come of a text and was not read yet."""

    def __init__(self) -> None:
        self.text = ""
        """What was not read yet; never long, since whoever waits for more has read the rest."""
        self.ended = False
        """Nothing more comes."""
        self.read = 0
        """Characters read so far, each time they are read."""
        self._kept: list[str] | None = None

    def add(self, piece: str) -> None:
        """More has come."""
        self.text += piece

    def take(self, size: int) -> str:
        """Read so many characters."""
        taken, self.text = self.text[:size], self.text[size:]
        self.read += size
        if self._kept is not None and taken:
            self._kept.append(taken)
        return taken

    def keep(self) -> None:
        """Remember all that is read from here on."""
        self._kept = []

    def place(self) -> int:
        """Where reading stands among what is remembered."""
        return len(self._kept or ())

    def since(self, place: int = 0) -> str:
        """What was read since then."""
        return "".join((self._kept or [])[place:])

    def forget(self) -> None:
        """Remember nothing any more."""
        self._kept = None

    def push_back(self, text: str) -> None:
        """Read this again."""
        if self._kept:
            self._kept[-1] = self._kept[-1].removesuffix(text)
        self.text = text + self.text

    def more(self) -> Reading[bool]:
        """Waits for one character more; False: none comes."""
        while not self.text and not self.ended:
            yield
        return bool(self.text)

    def at_least(self, size: int) -> Reading[bool]:
        """Waits for so many characters; False: the text ends before."""
        while len(self.text) < size and not self.ended:
            yield
        return len(self.text) >= size

    def blank(self) -> Reading[str]:
        """Reads white space up to something else."""
        found = []
        while True:
            found.append(self.take(_BLANK.match(self.text).end()))  # type: ignore[union-attr]
            if self.text or self.ended:
                return "".join(found)
            yield

    def sees(self, *marks: str) -> Reading[str]:
        """The longest of the marks that the text goes on with; empty: none. Waits only where that is open."""
        while True:
            found = max((mark for mark in marks if self.text.startswith(mark)), key=len, default="")
            if self.ended or not any(len(mark) > len(self.text) and mark.startswith(self.text) for mark in marks):
                return found
            yield

    def mark(self, *marks: str) -> Reading[str]:
        """The same, and reads it."""
        found = yield from self.sees(*marks)
        self.take(len(found))
        return found

    def expect(self, *marks: str) -> Reading[str]:
        """The same, where one of them must come.

        Raises:
            NotCalls: another text comes.
        """
        found = yield from self.mark(*marks)
        if not found:
            raise NotCalls
        return found

    def close(self, closing: Sequence[str], next_ones: Sequence[str] = ()) -> Reading[None]:
        """White space, and what ends a call: one of ``closing``, the end of the text, or what begins another call.

        Raises:
            NotCalls: something else comes.
        """
        if not closing:
            return
        yield from self.blank()
        found = yield from self.sees(*closing, *next_ones)
        if found in closing:
            self.take(len(found))
        elif not found and self.ended and any(mark.startswith(self.text) for mark in closing):
            self.take(len(self.text))
        elif not found and not (self.ended and not self.text):
            raise NotCalls

    def run(self, characters: re.Pattern[str], most: int | None = LONGEST_NAME) -> Reading[str]:
        """Reads as much as matches ``characters``, which matches any part of a match, too.

        Raises:
            NotCalls: it is longer than ``most`` characters.
        """
        found, size = list[str](), 0
        while True:
            match = characters.match(self.text)
            found.append(self.take(match.end() if match else 0))
            size += len(found[-1])
            if most is not None and size > most:
                raise NotCalls
            if self.text or self.ended:
                return "".join(found)
            yield

    def until(self, marks: Sequence[str], say: Say) -> Reading[str]:
        """Says what stands before the first of the marks, and reads that; empty: it did not come."""
        pattern = _any_of(tuple(marks))
        while True:
            found = pattern.search(self.text) if marks else None
            if found:
                before = self.take(found.start())
                if before:
                    say(before)
                return self.take(len(found.group()))
            certain = self.take(len(self.text) - (0 if self.ended else unfinished(self.text, marks)))
            if certain:
                say(certain)
            if self.ended:
                return ""
            yield

    def name_until(self, *marks: str, most: int = LONGEST_NAME) -> Reading[tuple[str, str]]:
        """A short text, and the mark that ends it.

        Raises:
            NotCalls: none comes soon.
        """
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            if sum(map(len, said)) > most:
                raise NotCalls

        mark = yield from self.until(marks, say)
        if not mark:
            raise NotCalls
        return "".join(said), mark


@lru_cache(maxsize=256)
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))


def unfinished(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may become one of the marks."""
    longest = min(len(text), max(map(len, marks), default=1) - 1)
    sizes = range(longest, 0, -1)
    return next((size for size in sizes if any(mark.startswith(text[-size:]) for mark in marks)), 0)
