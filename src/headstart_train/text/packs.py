"""Documents side by side, as many as fit: what a step of training reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headstart_train.text.corpus import Document

_OPEN_PACKS = 32


@dataclass(frozen=True, eq=False)
class Pack:
    """Documents side by side, up to a length."""

    documents: tuple[Document, ...]

    def __len__(self) -> int:
        return sum(len(document.tokens) for document in self.documents)

    def learnt_whole(self) -> Pack:
        """The same text, all of it learnt."""
        return Pack(tuple(Document(each.tokens, np.ones_like(each.answers)) for each in self.documents))


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
