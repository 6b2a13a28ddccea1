"""What the target shows while it reads the training text: computed once, kept in files and memory up to a limit."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headstart.passes.backend import Backend
from headstart.passes.batch import FINAL_TAP
from headstart.passes.runner import BLOCK_SIZE, ModelRunner, Span, Wanted
from headstart_train.text.packs import Pack

_FAVOURITES = "favourites"
_ROWS = 1024
"""States whose logits are held at a time."""


@dataclass(frozen=True)
class Batch:
    """Packs padded to one length; axes [pack, position]."""

    tokens: Tensor
    """int64 ids, 0 in padding."""
    positions: Tensor
    """int64 place within its document."""
    documents: Tensor
    """int64 number of the document, different in all packs; -1 in padding."""
    answers: Tensor
    """bool whether the target said the token."""
    features: Tensor
    """float32 [..., taps * hidden]."""
    final: Tensor
    """float32 [..., hidden] states after the final norm."""
    favourites: Tensor
    """int64 the likeliest of all tokens after this one, by the target, where it says the next one; else -1."""

    def said_ahead(self, distance: int) -> Tensor:
        """bool: whether the token this many places on is in the same document, and the target said it."""
        documents = shift(self.documents, distance, -2)
        return (documents == self.documents) & shift(self.answers, distance, False)

    def guessed(self, depth: int) -> Tensor:
        """bool: whether a draft that begins at the place guesses, at this depth, a token that the target said.

        The first guess is of the token two places on: the next one is the target's.
        """
        return self.said_ahead(2) & self.said_ahead(2 + depth)


def shift(values: Tensor, distance: int, fill: int | bool) -> Tensor:
    """values[:, i + distance] at place i, ``fill`` beyond the end."""
    shifted = torch.full_like(values, fill)
    if distance < values.shape[1]:
        shifted[:, : values.shape[1] - distance] = values[:, distance:]
    return shifted


class StateSource(Protocol):
    """Where a training gets packs with the target's states from."""

    computing_seconds: float
    """Spent on states that were nowhere kept."""

    def keeps(self, packs: Sequence[Pack]) -> bool:
        """Whether there is room for the states of all of these, none of them kept yet."""
        ...

    def batch(self, packs: Sequence[Pack]) -> Batch:
        """Packs with the target's states."""
        ...


def padded(packs: Sequence[Pack], device: torch.device) -> dict[str, Tensor]:
    """The tables of a ``Batch`` that follow from the text alone, by their names."""
    shape = (len(packs), max(len(pack) for pack in packs))
    tokens, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    documents, answers = np.full(shape, -1, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    count = 0
    for row, pack in enumerate(packs):
        first = 0
        for document in pack.documents:
            place = slice(first, first + len(document.tokens))
            tokens[row, place], answers[row, place] = document.tokens, document.answers
            positions[row, place], documents[row, place] = np.arange(len(document.tokens)), count
            first, count = place.stop, count + 1
    tables: dict[str, np.ndarray[Any, Any]] = {
        "tokens": tokens,
        "positions": positions,
        "documents": documents,
        "answers": answers,
    }
    return {name: torch.from_numpy(table).to(device) for name, table in tables.items()}


class TargetStates:
    """Runs the target over packs.

    A pack always rides alone and is rounded to bfloat16 whether it is kept or not, so its states are the same in
    every epoch, with any limit, and after a restart.

    Args:
        backend: the target.
        head: [vocab, hidden] its language model head.
        taps: layers whose inputs a head reads.
        cache_bytes: states kept at most, in memory or in files.
        device: where batches go.
        directories: where states are kept for later runs and other heads on the same text: looked for in all of them,
            written into the first; none: in memory alone.
    """

    def __init__(
        self,
        backend: Backend,
        head: Tensor,
        taps: Sequence[int],
        cache_bytes: int,
        device: torch.device | str = "cpu",
        directories: Sequence[Path] = (),
    ) -> None:
        self._directories = tuple(directories)
        self._runner = ModelRunner(backend, BLOCK_SIZE)
        self._head = head
        self._taps = tuple(taps)
        self._wanted = tuple(dict.fromkeys((*taps, FINAL_TAP)))
        self._room = cache_bytes
        self._kept: dict[Pack, tuple[Tensor, Tensor]] = {}
        self.computing_seconds = 0.0
        """Spent on states that were nowhere kept."""
        self._device = torch.device(device)

    def keeps(self, packs: Sequence[Pack]) -> bool:
        """Whether there is room for the states of all of these, none of them kept yet."""
        width = self._head.shape[1] * len(self._wanted) * torch.bfloat16.itemsize + torch.int64.itemsize
        return sum(map(len, packs)) * width <= self._room

    def batch(self, packs: Sequence[Pack]) -> Batch:
        """Packs with the target's states."""
        known = [self._known(pack) for pack in packs]
        states = pad_sequence([states.float() for states, _ in known], batch_first=True)
        favourites = pad_sequence([favourites for _, favourites in known], batch_first=True, padding_value=-1)
        parts = dict(zip(self._wanted, states.to(self._device).chunk(len(self._wanted), dim=-1), strict=True))
        return Batch(
            features=torch.cat([parts[tap] for tap in self._taps], dim=-1),
            final=parts[FINAL_TAP],
            favourites=favourites.to(self._device),
            **padded(packs, self._device),
        )

    def _known(self, pack: Pack) -> tuple[Tensor, Tensor]:
        """States bfloat16 [token, wanted * hidden], and favourites int64 [token]."""
        known = self._kept.get(pack)
        if known is not None:
            return known
        began = time.perf_counter()
        said = torch.from_numpy(np.concatenate([np.append(document.answers[1:], False) for document in pack.documents]))
        read = self._read(pack)
        computed = read is None
        if read is None:
            states, favourites = self._run(pack)
            read = states, self._favourites(states, said) if favourites is None else favourites
            self._write(pack, *read)
        # A training that learns from other places may have kept it: of more of them, or of fewer.
        read = read[0], read[1].where(said, -1)
        if (read[1][said] < 0).any():
            computed, read = True, (read[0], self._favourites(read[0], said))
        if computed:
            self.computing_seconds += time.perf_counter() - began
        size = read[0].nbytes + read[1].nbytes
        if size <= self._room:
            self._room -= size
            self._kept[pack] = read
        return read

    def _read(self, pack: Pack) -> tuple[Tensor, Tensor] | None:
        """From its file, if that has all layers that are wanted."""
        for path in self._paths(pack):
            kept = load_file(path) if path.is_file() else {}
            if all(_name(tap) in kept for tap in self._wanted):
                # A copy: a view would keep the whole mapped file in memory.
                return torch.cat([kept[_name(tap)] for tap in self._wanted], dim=-1), kept[_FAVOURITES].clone()
        return None

    def _write(self, pack: Pack, states: Tensor, favourites: Tensor) -> None:
        if not self._directories or states.nbytes > self._room:
            return
        path = self._paths(pack)[0]
        parts = states.chunk(len(self._wanted), dim=-1)
        tables = {_name(tap): part.contiguous() for tap, part in zip(self._wanted, parts, strict=True)}
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: a file that exists is whole.
        partial = path.with_suffix(f".{os.getpid()}")
        save_file({**tables, _FAVOURITES: favourites}, partial)
        partial.replace(path)

    def _paths(self, pack: Pack) -> list[Path]:
        digest = hashlib.sha256()
        for document in pack.documents:
            digest.update(len(document.tokens).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(document.tokens).tobytes())
        return [directory / f"{digest.hexdigest()[:32]}.safetensors" for directory in self._directories]

    @torch.no_grad()
    def _favourites(self, states: Tensor, wanted: Tensor) -> Tensor:
        """After states [token, wanted * hidden]; -1 where nothing is wanted, bool [token]."""
        first = self._wanted.index(FINAL_TAP) * self._head.shape[1]
        final = states[wanted, first : first + self._head.shape[1]].to(self._head.device, self._head.dtype)
        favourites = torch.full_like(wanted, -1, dtype=torch.int64)
        if len(final):
            best = [F.linear(rows, self._head).argmax(-1) for rows in torch.split(final, _ROWS)]
            favourites[wanted] = torch.cat(best).cpu()
        return favourites

    def _run(self, pack: Pack) -> tuple[Tensor, Tensor | None]:
        """States, and favourites after all tokens of a backend that finds them by the way."""
        # Each document of a pack begins a block of its own.
        blocks = sum(-(-len(document.tokens) // BLOCK_SIZE) for document in pack.documents)
        if blocks > self._runner.cache.allocator.num_blocks:
            self._runner = ModelRunner(self._runner.backend, blocks * BLOCK_SIZE, num_states=blocks)
        cache = self._runner.cache
        wanted: Wanted = "best" if self._runner.backend.finds_best else "none"
        spans = [Span.chain(i, document.tokens.tolist(), wanted) for i, document in enumerate(pack.documents)]
        for span in spans:
            cache.add(span.sequence_id)
        try:
            rows = {span.sequence_id: len(span) for span in spans}
            with cache.reserve(rows, final=rows):
                outputs = self._runner.forward(spans, self._wanted)
        finally:
            for span in spans:
                cache.remove(span.sequence_id)
        states = [np.concatenate(output.hidden.at(self._wanted), axis=-1) for output in outputs]
        best = [output.best for output in outputs if output.best is not None]
        favourites = torch.from_numpy(np.concatenate(best)).long() if best else None
        return torch.from_numpy(np.concatenate(states)).to(torch.bfloat16), favourites


def _name(tap: int) -> str:
    return "final" if tap == FINAL_TAP else f"layer_{tap}"
