"""Rounds of one sequence in one native call (``src/stretch.h``)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.models.backend import IntArray, KVStorage
from headstart.models.stretch import (
    MOST_GUESSERS,
    CutPlan,
    Guesser,
    GuesserFault,
    Judgement,
    RoundRecord,
    StretchLimits,
    StretchPart,
)
from headstart.native import library as c
from headstart.native.growth import NativeHeadPart
from headstart.native.packing import RopeTables, address
from headstart.native.storage import NativeStorage
from headstart.native.suffix_text import NativeSuffixText


class _Entered(NamedTuple):
    """A guesser, and the memory that the library reads and writes for it."""

    guesser: Guesser
    rates: NDArray[np.float64]
    judgements: IntArray


class NativeStretches:
    """``Stretches`` of a packed model.

    Args:
        model: the packed model.
        ropes: its tables.
    """

    def __init__(self, library: c.Library, model: int, ropes: RopeTables) -> None:
        self._library = library
        self._model = model
        self._ropes = ropes

    def run(
        self,
        storage: KVStorage,
        block_table: IntArray,
        cached: int,
        root: int,
        limits: StretchLimits,
        part: StretchPart,
    ) -> list[RoundRecord]:
        """See ``Stretches``."""
        if not isinstance(storage, NativeStorage) or storage.model != self._model:
            raise TypeError(f"storage is a {type(storage).__name__} of another backend; allocate it with this one")
        self._ropes.reach(cached + limits.rows)
        block_table = np.ascontiguousarray(block_table, np.int32)
        followed = [guesser.taps for guesser in part.guessers if guesser is not None and guesser.taps]
        if len(followed) > 1:
            raise GuesserFault(f"{len(followed)} guessers read the target's states; one can")
        taps = followed[0] if followed else ()
        end_tokens, tap_layers = np.array(sorted(limits.end_tokens), np.int32), np.array(taps, np.int32)
        trees = np.empty((4, limits.rounds, max(limits.nodes, 1)), np.int32)
        rounds = (c.Round * limits.rounds)()
        guessers = (c.Guesser * MOST_GUESSERS)()
        entered = [
            None if guesser is None else self._enter(guessers[place], guesser, limits)
            for place, guesser in enumerate(part.guessers)
        ]
        plan, table = (None, None) if part.plan is None else _plan(part.plan)
        first, size = address(trees), trees.strides[0]
        stretch = c.Stretch(
            cached=cached,
            root=root,
            blocks=block_table.shape[1],
            pages_per_block=storage.pages_per_block,
            block_table=address(block_table),
            most_rounds=limits.rounds,
            most_tokens=limits.tokens,
            room=limits.room,
            most_seconds=limits.seconds,
            ends=len(end_tokens),
            end_tokens=address(end_tokens),
            nodes=trees.shape[2],
            depth=limits.depth,
            taps=len(taps),
            tap_layers=address(tap_layers),
            guessers=guessers,
            plan=None if plan is None else ctypes.pointer(plan),
            round=rounds,
            node_tokens=first,
            node_parents=first + size,
            node_grades=first + 2 * size,
            path=first + 3 * size,
        )
        error = self._library.stretch(self._model, storage.handle, ctypes.byref(stretch))
        del table  # which the plan points to
        if error is not None:
            fault = ValueError if stretch.at_fault < 0 else GuesserFault
            raise fault(f"the rounds cannot run: {error.decode()}")
        for place, each in enumerate(entered):
            if each is not None:
                pairs = each.judgements[: guessers[place].judged].tolist()
                each.guesser.judgements = [Judgement(pair >> 1, bool(pair & 1)) for pair in pairs]
        return [_record(rounds[i], *trees[:, i]) for i in range(stretch.rounds)]

    def _enter(self, to: c.Guesser, guesser: Guesser, limits: StretchLimits) -> _Entered:
        """Tell the library of a guesser."""
        part = guesser.part
        if isinstance(part, NativeSuffixText):
            to.suffix = ctypes.pointer(part.part)
        elif isinstance(part, NativeHeadPart):
            to.head = ctypes.pointer(part.part)
        else:
            raise GuesserFault(f"a {type(part).__name__} is no guesser of this backend")
        if part.isa != self._library.isa:
            raise GuesserFault(f"a guesser is computed with {part.isa}, the model with {self._library.isa}")
        entered = _Entered(
            guesser,
            np.array(guesser.rates, np.float64),
            np.empty(limits.rounds * max(limits.nodes, 1), np.int32),
        )
        to.rates, to.judgements, to.room = address(entered.rates), address(entered.judgements), len(entered.judgements)
        return entered


def _plan(plan: CutPlan) -> tuple[c.Plan, tuple[IntArray, NDArray[np.float64]]]:
    """For the library, and the tables that it points to."""
    merits, seconds = np.array(plan.merits, np.int32), np.array(plan.pass_seconds, np.float64)
    return c.Plan(address(merits), len(seconds), address(seconds), plan.other_seconds), (merits, seconds)


def _record(done: c.Round, tokens: IntArray, parents: IntArray, grades: IntArray, path: IntArray) -> RoundRecord:
    return RoundRecord(
        tokens[: done.drafted].tolist(),
        parents[: done.drafted].tolist(),
        grades[: done.drafted].tolist(),
        path[: done.accepted].tolist(),
        done.token,
        list(done.draft_seconds),
        done.pass_seconds,
        done.other_seconds,
        done.expected_tokens,
        done.expected_seconds,
        done.row_seconds,
        list(done.gains),
        list(done.verified),
        list(done.judged),
    )
