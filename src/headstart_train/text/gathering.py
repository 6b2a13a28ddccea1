"""Shards that engines elsewhere write, gathered into a corpus in their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile

import numpy as np

from headstart.common.enumerations import Precision
from headstart.errors import ConfigError
from headstart_train.text.corpus import Corpus, Document
from headstart_train.text.shards import SHARD, Progress, Shard, Writing, append
from headstart_train.text.synthesis import Conversation

MOST_AHEAD = 4096
"""Shards that are asked for at once."""


@dataclass(frozen=True)
class Order:
    """What every writer is told."""

    model: str
    precision: Precision | str
    target_digest: str
    """Of the weights that it must find under that name."""
    writing: Writing
    batch_size: int
    max_context: int


@dataclass(frozen=True)
class WrittenShard:
    number: int
    documents: list[Document]
    backend: str
    """What computed it: instruction set and precision."""


class Writers(Protocol):
    """Engines elsewhere."""

    @property
    def count(self) -> int:
        """How many write at once."""

    def write(self, order: Order, shards: Sequence[Shard]) -> Iterator[WrittenShard]:
        """Each shard once, as it is done; closing the iterator stops them.

        Raises:
            ConfigError: they cannot load the target, or write a shard.
        """

    def close(self) -> None:
        """Nothing more is to be written."""


class Shelf:
    """Shards that are done before it is their turn, as files: an interruption loses only those that are being written.

    Args:
        directory: made when the first is put there, removed with the last.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def numbers(self) -> set[int]:
        return {int(path.stem) for path in self._directory.glob("*.npz")}

    def put(self, number: int, documents: Sequence[Document]) -> None:
        self._directory.mkdir(exist_ok=True)
        unfinished = self._path(number).with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            np.savez(
                file,
                tokens=np.concatenate([document.tokens for document in documents]),
                answers=np.concatenate([document.answers for document in documents]),
                lengths=[len(document.tokens) for document in documents],
            )
        unfinished.replace(self._path(number))

    def get(self, number: int) -> list[Document] | None:
        """None: it is not there, or damaged."""
        try:
            with np.load(self._path(number), allow_pickle=False) as kept:
                tokens, answers, ends = kept["tokens"], kept["answers"], np.cumsum(kept["lengths"])[:-1]
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return None
        parts = zip(np.split(tokens, ends), np.split(answers, ends), strict=True)
        return [Document(said, answered) for said, answered in parts]

    def drop(self, number: int) -> None:
        """It is in the corpus."""
        self._path(number).unlink(missing_ok=True)
        if self._directory.is_dir() and not any(self._directory.iterdir()):
            self._directory.rmdir()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:06d}.npz"


class Gathering:
    """A corpus that writers elsewhere continue, shard by shard; they go on while nothing is asked of them here.

    Args:
        says: told, once, of what the user should know.
    """

    def __init__(
        self,
        writers: Writers,
        order: Order,
        corpus: Corpus,
        prompts: Sequence[Conversation],
        says: Callable[[str], None],
    ) -> None:
        self._writers, self._order, self._corpus, self._prompts, self._says = writers, order, corpus, prompts, says
        self._shelf = Shelf(corpus.directory / "shards")
        self._coming: Iterator[WrittenShard] = iter(())
        self._backends: set[str] = set()

    @property
    def first_documents(self) -> int:
        """A shard of each writer: from fewer it cannot be told how fast they are together."""
        return self._writers.count * SHARD

    def write(self, num_tokens: int, documents: int | None = None, progress: Progress | None = None) -> None:
        """As ``shards.write_answers``, with the same text.

        Raises:
            ConfigError: as ``Writers.write``.
        """
        corpus = self._corpus
        most = math.inf if documents is None else len(corpus) + documents
        while (missing := num_tokens - corpus.num_answer_tokens) > 0 and len(corpus) < most:
            number, place = divmod(len(corpus), SHARD)
            shard = self._await(number, missing)
            append(corpus, shard[place : int(min(SHARD, most - number * SHARD))], num_tokens, progress)
            if len(corpus) >= (number + 1) * SHARD:
                self._shelf.drop(number)

    def close(self) -> None:
        """No more will be written."""
        if isinstance(self._coming, Generator):
            self._coming.close()
        self._writers.close()

    def _await(self, number: int, missing: int) -> list[Document]:
        """A shard's documents."""
        asked = False
        while (found := self._shelf.get(number)) is None:
            written = next(self._coming, None)
            if written is not None:
                self._shelf.put(written.number, written.documents)
                self._note(written.backend)
                continue
            if asked:
                raise ConfigError(f"shard {number} of the text was not written; start the same command again.")
            asked = True
            # Answers are as long as they may be, or half as long.
            wanted = math.ceil(2 * missing / (SHARD * self._order.writing.answer_tokens)) + self._writers.count
            wanted = min(wanted, MOST_AHEAD)
            numbers = sorted(set(range(number, number + wanted)) - (self._shelf.numbers() - {number}))
            self._coming = self._writers.write(self._order, [Shard.of(each, self._prompts) for each in numbers])
        return found

    def _note(self, backend: str) -> None:
        known = len(self._backends)
        self._backends.add(backend)
        if known == 1 and len(self._backends) == 2:
            one, other = sorted(self._backends)
            self._says(
                f"The text is written by processors of different kinds ({one}, {other}): all of it is the target's, "
                "but another run may write other words."
            )
