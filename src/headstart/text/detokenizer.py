"""Text that grows as tokens are committed."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headstart.sampling.params import SamplingParams
from headstart.text.stop_strings import StopMatcher
from headstart.text.tokenizer import Tokenizer

_LONGEST_CHARACTER = 4  # bytes of UTF-8


class Extension(NamedTuple):
    """What came of a run of tokens."""

    text: str
    """The text that became final."""
    taken: int
    """Tokens of the run that belong to the output: all, or those up to the one that completed a stop string."""


class IncrementalDetokenizer:
    """Turns committed tokens into text, each piece final when it is returned.

    Held back are the bytes of an unfinished character and whatever may be the beginning of a stop string; special
    tokens are silent unless asked for, and so is a token that ends the sequence. All pieces, ``finish`` included, join
    to ``Tokenizer.decode`` of prompt and output less the prompt's own complete characters, cut before the first stop
    string, or after it and after what ends the sequence where ``include_stop``. Costs one table look-up a token and
    one a character, however long the output is.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stop: Iterable[str] = (),
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        include_stop: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """``stop`` strings are sought in the output only, from the text of token ``min_tokens`` (from 0) on.
        ``shown``: special tokens that are never skipped."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown if skip_special_tokens else frozenset[int]()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._include_stop = include_stop
        self._stops = StopMatcher(stop, kept=include_stop)
        self._min_tokens = min_tokens
        self.offsets: list[int] = []
        """[token] where its text begins, in characters of the whole text; pieces of one character begin alike."""
        self._num_characters = 0
        self._pieces: list[str] = []
        self._at_start = True
        self._read_prompt(prompt_ids)

    @classmethod
    def of_request(
        cls,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        shown: frozenset[int] = frozenset(),
    ) -> IncrementalDetokenizer:
        """The text of a request's output, as its parameters want it."""
        return cls(
            tokenizer,
            prompt_ids,
            params.stop,
            params.min_tokens,
            params.skip_special_tokens,
            params.include_stop_str_in_output,
            shown,
        )

    @property
    def text(self) -> str:
        """All text that is final."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, None as long as there was none."""
        return self._stops.matched

    def append(self, token_id: int, ends: bool = False) -> str:
        """Take one token, which may end the sequence; the text that became final. Nothing comes after a stop string."""
        self.offsets.append(self._num_characters)
        silent = token_id in self._skipped or (ends and not self._include_stop)
        piece = "" if silent else self._utf8.decode(self._bytes_of(token_id))
        self._num_characters += len(piece)
        return self._release(self._stops.push(piece) if len(self.offsets) > self._min_tokens else piece)

    def extend(self, token_ids: Iterable[int]) -> Extension:
        """Take a run of committed tokens, up to the one that completes a stop string."""
        pieces = []
        for token_id in token_ids:
            if self.stop is not None:
                break
            pieces.append(self.append(token_id))
        return Extension("".join(pieces), len(pieces))

    def finish(self) -> str:
        """The sequence has ended: the text that was held back, an unfinished character as U+FFFD."""
        tail = self._utf8.decode(b"", final=True)
        return self._release(self._stops.push(tail) + self._stops.flush())

    @property
    def unfinished(self) -> bool:
        """Whether the last tokens hold a part of a character that is not whole yet."""
        return bool(self._utf8.getstate()[0])

    @property
    def watched(self) -> bool:
        """Whether there are stop strings, so that text must be made as its tokens come."""
        return self._stops.any

    def watch(self) -> StopWatch | None:
        """What finds stop strings in texts that go on from here; None: there are none to find."""
        return (
            StopWatch(self, self._utf8.getstate(), self._stops.state, len(self.offsets), self._at_start)
            if self.watched
            else None
        )

    def went_on(self, watch: StopWatch, token_id: int) -> StopWatch:
        """Where a text stands that stood where ``watch`` does, and took a token that does not end it."""
        piece, state, at_start, ended = "", watch.utf8, watch.at_start, False
        if token_id not in self._skipped:
            read = self._tokenizer.token_bytes(token_id)
            if at_start and read:
                read, at_start = self._tokenizer.without_leading_space(read), False
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            decoder.setstate(state)
            piece, state = decoder.decode(read), decoder.getstate()
        matching, length = watch.matching, watch.length + 1
        if length > self._min_tokens:
            matching, ended = self._stops.after(matching, piece)
        return StopWatch(self, state, matching, length, at_start, ended)

    def _release(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece

    def _bytes_of(self, token_id: int) -> bytes:
        piece = self._tokenizer.token_bytes(token_id)
        if self._at_start and piece:
            self._at_start = False
            return self._tokenizer.without_leading_space(piece)
        return piece

    def _read_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Start where the prompt ends: perhaps inside of a character, so its last bytes are put before the output."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if token_id not in self._skipped:
                tail = self._tokenizer.token_bytes(token_id) + tail
                if len(tail) >= _LONGEST_CHARACTER:
                    break
        if tail:
            self._at_start = False
            self._utf8.decode(tail)


@dataclass(frozen=True)
class StopWatch:
    """Where one of many texts stands that begin alike: whether it has completed a stop string."""

    detokenizer: IncrementalDetokenizer = field(repr=False, compare=False)
    utf8: tuple[bytes, int]
    """Of an unfinished character."""
    matching: int
    """Of the stop strings."""
    length: int
    """Tokens."""
    at_start: bool
    ended: bool = False

    def after(self, token: int) -> StopWatch:
        """The same text with one token more, which does not end it by itself."""
        return self.detokenizer.went_on(self, token)


class CommittedText:
    """The text of committed tokens. Where no stop string may end it, it is made when it is asked for: between two
    passes, whose weights sweep the caches, every piece of code that runs is dear, however few tokens it is for."""

    def __init__(self, detokenizer: IncrementalDetokenizer) -> None:
        self._detokenizer = detokenizer
        self._watched = detokenizer.watched
        self._waiting: list[tuple[int, bool]] = []

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, None as long as there was none."""
        return self._detokenizer.stop if self._watched else None

    @property
    def text(self) -> str:
        """All text that is final."""
        return self._caught_up().text

    @property
    def offsets(self) -> list[int]:
        """[token] as ``IncrementalDetokenizer.offsets``."""
        return self._caught_up().offsets

    def append(self, token_id: int, ends: bool) -> None:
        """Take one token, by which the sequence ends or not."""
        if self._watched:
            self._detokenizer.append(token_id, ends)
        else:
            self._waiting.append((token_id, ends))

    def watch(self) -> StopWatch | None:
        """As ``IncrementalDetokenizer.watch``."""
        return self._caught_up().watch()

    def finish(self) -> None:
        """The sequence has ended: what was held back becomes final."""
        self._caught_up().finish()

    def _caught_up(self) -> IncrementalDetokenizer:
        for token_id, ends in self._waiting:
            self._detokenizer.append(token_id, ends)
        self._waiting.clear()
        return self._detokenizer
