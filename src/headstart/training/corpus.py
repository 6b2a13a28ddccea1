"""Training text on disk: token ids, and which of them the target itself said."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ConfigError

_TOKENS, _ANSWERS, _ENDS, _ABOUT = "tokens.i32", "answers.u8", "ends.i64", "corpus.json"


@dataclass(frozen=True)
class Document:
    """One conversation."""

    tokens: NDArray[np.int32]
    """[token] ids, as the target read and said them."""
    answers: NDArray[np.bool_]
    """[token] whether the target said it: only such tokens are learnt."""


class Corpus:
    """Documents in a directory; append-only, and whole after a kill: what was half written is passed over.

    Args:
        directory: made if need be.
        about: what the text comes from (target, digest, ...). An older corpus in its place must say the same.
        writable: whether what was half written is cut off. Another training may be writing it just now.

    Raises:
        ConfigError: the directory holds a corpus of something else, or a damaged one.
    """

    def __init__(self, directory: Path, about: dict[str, Any], *, writable: bool = True) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.about = about
        record = directory / _ABOUT
        if record.is_file():
            _require_same(record, about)
        else:
            unfinished = record.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(about) + "\n", encoding="utf-8")
            unfinished.replace(record)
        for name in (_TOKENS, _ANSWERS, _ENDS):
            (directory / name).touch()
        self._ends = np.fromfile(directory / _ENDS, dtype=np.int64)
        total = int(self._ends[-1]) if len(self._ends) else 0
        for name, size in ((_TOKENS, 4 * total), (_ANSWERS, total), (_ENDS, 8 * len(self._ends))):
            self._require(name, size)
            if writable:
                os.truncate(directory / name, size)
        self._read()

    @classmethod
    def existing(cls, directory: Path, target_digest: str) -> Corpus:
        """The text that another training of the same target has written.

        Raises:
            ConfigError: there is none, or the target is another.
        """
        if not (directory / _ABOUT).is_file():
            raise ConfigError(f"{directory} holds no text of a training; name the corpus directory of one.")
        corpus = cls(directory, {"target_digest": target_digest}, writable=False)
        corpus.about = json.loads((directory / _ABOUT).read_text(encoding="utf-8"))
        return corpus

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    @property
    def num_answer_tokens(self) -> int:
        return int(self._answers.sum())

    def __getitem__(self, index: int) -> Document:
        start = int(self._ends[index - 1]) if index else 0
        end = int(self._ends[index])
        return Document(self._tokens[start:end], self._answers[start:end].astype(np.bool_))

    def __iter__(self) -> Iterator[Document]:
        return (self[index] for index in range(len(self)))

    def extend(self, documents: Sequence[Document]) -> None:
        """Append; a document counts once its end is written, which comes last."""
        if not documents:
            return
        lengths = np.array([len(document.tokens) for document in documents], dtype=np.int64)
        self._append(_TOKENS, np.concatenate([document.tokens for document in documents]).astype(np.int32))
        self._append(_ANSWERS, np.concatenate([document.answers for document in documents]).astype(np.uint8))
        ends = self.num_tokens + np.cumsum(lengths)
        self._append(_ENDS, ends)
        self._ends = np.concatenate([self._ends, ends])
        self._read()

    def counts(self, vocab_size: int, documents: Sequence[int]) -> NDArray[np.int64]:
        """[vocab] how often the target said each token in these documents."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for index in documents:
            document = self[index]
            counts += np.bincount(document.tokens[document.answers], minlength=vocab_size)
        return counts

    def _read(self) -> None:
        total = int(self._ends[-1]) if len(self._ends) else 0
        self._tokens = np.fromfile(self.directory / _TOKENS, dtype=np.int32, count=total)
        self._answers = np.fromfile(self.directory / _ANSWERS, dtype=np.uint8, count=total)

    def _append(self, name: str, values: NDArray[Any]) -> None:
        with (self.directory / name).open("ab") as file:
            values.tofile(file)

    def _require(self, name: str, size: int) -> None:
        path = self.directory / name
        if path.stat().st_size < size:
            raise ConfigError(f"{path} is shorter than its documents; remove {self.directory} and write it anew.")


def _require_same(record: Path, about: dict[str, Any]) -> None:
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{record} is damaged ({error}); remove {record.parent} and write it anew.") from error
    if not isinstance(known, dict):
        raise ConfigError(f"{record} describes no text; name another directory.")
    changed = [name for name in about if known.get(name) != about[name]]
    if changed:
        differences = "; ".join(f"{name} is {known.get(name)}, not {about[name]}" for name in changed)
        raise ConfigError(
            f"{record.parent} holds other text than is asked for ({differences}); name another directory."
        )


@dataclass(frozen=True, eq=False)
class Pack:
    """Documents side by side, up to a length."""

    documents: tuple[Document, ...]

    def __len__(self) -> int:
        return sum(len(document.tokens) for document in self.documents)

    def learnt_whole(self) -> Pack:
        """The same text, all of it learnt."""
        return Pack(tuple(Document(each.tokens, np.ones_like(each.answers)) for each in self.documents))


_OPEN_PACKS = 32


def make_packs(documents: Sequence[Document], length: int) -> list[Pack]:
    """Put each document into the first pack of at most ``length`` tokens that has room for it.

    Longer documents are cut, those without an answer left out.
    """
    packs: list[list[Document]] = []
    room: list[int] = []
    for document in documents:
        cut = Document(document.tokens[:length], document.answers[:length])
        if not cut.answers.any():
            continue
        # Older packs are as good as full.
        recent = range(max(len(packs) - _OPEN_PACKS, 0), len(packs))
        index = next((index for index in recent if room[index] >= len(cut.tokens)), len(packs))
        if index == len(packs):
            packs.append([])
            room.append(length)
        packs[index].append(cut)
        room[index] -= len(cut.tokens)
    return [Pack(tuple(members)) for members in packs]


def split_held_out(count: int, every: int = 20) -> tuple[list[int], list[int]]:
    """Indices to train on, and those held out: one in ``every``, none where there are too few to spare one.

    Which one is drawn, since temperatures and sources take turns: a fixed step would hold out one kind alone. A corpus
    that has grown holds out the same ones and more.
    """
    random = np.random.default_rng(every)
    held_out = [first + int(random.integers(every)) for first in range(0, count - every + 1, every)]
    kept = set(held_out)
    return [index for index in range(count) if index not in kept], held_out
