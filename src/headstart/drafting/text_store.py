"""Texts that drafters may copy from beyond a request's own: what earlier requests said, and what somebody has given.

Texts are kept apart by scope (``DraftContext.scope_of``): none is ever guessed from for another. They are bounded in
bytes. With a directory they outlast the process: a file for each scope, written whole and put in place at once, so that
it may be deleted, or broken, at any time.
"""

from __future__ import annotations

import atexit
import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import chain, count
from pathlib import Path
from threading import Lock, Timer

import numpy as np

from headstart.common import kept_files
from headstart.drafting import STORE_BYTES
from headstart.drafting.context import ScopedMemory
from headstart.errors import RequestError

_SCOPE_SHARE = 16
"""One scope has this part of them at most."""
_TEXT_BYTES = 64
"""That a text counts beside its tokens: so many small ones take no more memory than they may."""
WRITE_SECONDS = 30.0
"""At most so much of what was said is lost where a process is killed."""
_MAGIC = b"headstart drafter texts 1 "


class _Texts:
    """Those of one scope, bounded: the oldest go first.

    Args:
        most_bytes: at least those of a text of one token.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._size = 0
        self.opened = False
        """Whether what is on disk was read."""
        self.numbers: OrderedDict[bytes, int] = OrderedDict()
        """Token ids as int32 -> the number of the text, rising."""

    def add(self, text: bytes, number: int) -> None:
        text = text[-((self._most_bytes - _TEXT_BYTES) // 4 * 4) :]
        # One that is there already counts as the newest, and takes no room again.
        if self.numbers.pop(text, None) is None:
            self._size += len(text) + _TEXT_BYTES
        self.numbers[text] = number
        while self._size > self._most_bytes:
            self._size -= len(self.numbers.popitem(last=False)[0]) + _TEXT_BYTES


class TextStore:
    """Several threads may use it.

    Args:
        directory: where texts are kept; None: in memory alone.
        most_bytes: of all files together. One scope has a sixteenth of that at most, in a file as in memory, and the
            scopes used last are kept.
        identity: of the tokenizer; files of another are not looked at.
        vocab_size: every id lies below it.
    """

    def __init__(
        self,
        directory: Path | None = None,
        most_bytes: int = STORE_BYTES,
        identity: str = "",
        vocab_size: int = 1 << 31,
    ) -> None:
        self.keeps_outputs = directory is not None
        """Whether drafters that copy are to add what requests said."""
        self.is_read = False
        """Whether any drafter takes texts from here."""
        self._directory, self._most_bytes = directory, most_bytes
        self._identity, self._vocab_size = identity, vocab_size
        self._numbers = count(1)
        self._scopes = ScopedMemory(lambda: _Texts(max(most_bytes // _SCOPE_SHARE, 2 * _TEXT_BYTES)))
        self._unsaved: dict[Path, _Texts] = {}
        self._timer: Timer | None = None
        self._lock, self._writing = Lock(), Lock()
        if directory is not None:
            atexit.register(self.save)

    def add(self, scope: Hashable, tokens: Sequence[int]) -> None:
        """A text of a scope; an empty one is none."""
        if not len(tokens):
            return
        with self._lock:
            texts = self._of(scope)
            texts.add(np.asarray(tokens, np.int32).tobytes(), next(self._numbers))
            if self._directory is None:
                return
            self._unsaved[self._path(scope)] = texts
            if self._timer is None:
                # On a thread of its own: nobody's next token waits for a disk.
                self._timer = Timer(WRITE_SECONDS, self.save)
                self._timer.daemon = True
                self._timer.start()

    def add_all(self, scope: Hashable, texts: Sequence[Sequence[int]]) -> int:
        """Texts that somebody gives, all or none; their tokens.

        Raises:
            RequestError: one holds what is no token, or no drafter would look at them.
        """
        if not self.is_read:
            raise RequestError("no drafter of this engine copies from texts; add one with more_drafters, as suffix.")
        for token in chain.from_iterable(texts):
            if not 0 <= token < self._vocab_size:
                raise RequestError(f"a text holds token {token}; this model's ids go from 0 to {self._vocab_size - 1}.")
        for tokens in texts:
            self.add(scope, tokens)
        return sum(map(len, texts))

    def since(self, scope: Hashable, number: int, most_tokens: int) -> tuple[int, list[list[int]]]:
        """The texts of a scope that are newer than a number, the oldest first, and the number of the newest; 0: all. Of
        more than ``most_tokens`` the newest."""
        found: list[list[int]] = []
        newest, left = number, most_tokens
        with self._lock:
            for text, own in reversed(self._of(scope).numbers.items()):
                if own <= number or left <= 0:
                    break
                newest = max(newest, own)
                found.append(np.frombuffer(text, np.int32)[-left:].tolist())
                left -= len(found[-1])
        return newest, found[::-1]

    def save(self) -> None:
        """Write what is not on disk yet; what cannot be written stays in memory."""
        with self._writing:
            with self._lock:
                contents = {path: list(texts.numbers) for path, texts in self._unsaved.items()}
                self._unsaved = {}
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
            try:
                for path, texts in contents.items():
                    lengths = np.array([len(texts), *(len(text) // 4 for text in texts)], "<i4")
                    content = lengths.tobytes() + b"".join(texts)
                    # What users were told is nobody else's to read.
                    with kept_files.written(path) as file:
                        file.write(_MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
                if contents:
                    kept_files.make_room(next(iter(contents)).parent.glob("texts-*"), self._most_bytes)
            except OSError as error:
                why = error.strerror
                kept_files.tell(f"drafter_store {self._directory} cannot be written ({why}); texts stay in memory.")

    def close(self) -> None:
        """Write what is not on disk yet, for the last time."""
        atexit.unregister(self.save)
        self.save()

    def _of(self, scope: Hashable) -> _Texts:
        """The texts of a scope; those of one that is asked for the first time, or again after others, are read."""
        texts = self._scopes[scope]
        if not texts.opened:
            texts.opened = True
            if self._directory is not None:
                path = self._path(scope)
                unsaved = self._unsaved.get(path)
                for text in self._read(path) if unsaved is None else list(unsaved.numbers):
                    texts.add(text, next(self._numbers))
        return texts

    def _path(self, scope: Hashable) -> Path:
        """The file of a scope, whose name tells nobody which that is."""
        assert self._directory is not None
        digest = hashlib.sha256(f"{self._identity}\0{scope}".encode(errors="surrogatepass")).hexdigest()
        return self._directory / f"texts-{digest[:40]}"

    def _read(self, path: Path) -> list[bytes]:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            kept_files.tell(
                f"drafter_store {path.parent} cannot be read ({error.strerror}); its texts are passed over."
            )
            return []
        texts = _parsed(content, self._vocab_size)
        if texts is None:
            aside = path.with_name(f"{path.name}.damaged")
            try:
                path.replace(aside)
            except OSError:
                aside = path
            kept_files.tell(f"{path} is damaged or of another version, and is left aside as {aside.name}; delete it.")
        return texts or []


def _parsed(content: bytes, vocab_size: int) -> list[bytes] | None:
    """The texts of a file; None: it is damaged, or of another version."""
    head, _, body = content.partition(b"\n")
    if head != _MAGIC + hashlib.sha256(body).hexdigest().encode() or len(body) < 4 or len(body) % 4:
        return None
    numbers = np.frombuffer(body, "<i4")
    texts = int(numbers[0])
    ends = np.cumsum(numbers[1 : 1 + texts], dtype=np.int64)
    tokens = numbers[1 + texts :]
    if not 0 <= texts < len(numbers) or (numbers[1 : 1 + texts] < 1).any() or (texts and ends[-1] != len(tokens)):
        return None
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        return None
    return [part.astype(np.int32).tobytes() for part in np.split(tokens, ends[:-1])] if texts else []
