"""Text on disk, as training writes it: token ids, and which of them the target itself said."""

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
    def existing(cls, directory: Path, target_digest: str | None) -> Corpus:
        """The text that another training of the same target has written; None: of any target.

        Raises:
            ConfigError: there is none, or the target is another.
        """
        if not (directory / _ABOUT).is_file():
            raise ConfigError(f"{directory} holds no text of a training; name the corpus directory of one.")
        about = {} if target_digest is None else {"target_digest": target_digest}
        corpus = cls(directory, about, writable=False)
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
