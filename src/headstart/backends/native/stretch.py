"""Rounds of some sequences in one native call (``src/rounds/stretch.h``)."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.backends.native import library as c
from headstart.backends.native.adapters import handles_of
from headstart.backends.native.growth import NativeHeadGrower
from headstart.backends.native.own_weights import NativeOwnWeights
from headstart.backends.native.packing import RopeTables, address, as_int32
from headstart.backends.native.storage import NativeStorage
from headstart.backends.native.suffix_text import NativeSuffixText
from headstart.passes.batch import IntArray, KVStorage
from headstart.passes.rounds import (
    CutRule,
    Guesser,
    GuesserFault,
    Judgement,
    RoundRecord,
    Sampling,
    SpanRecord,
    StretchDrafting,
    StretchLimits,
    StretchStates,
)

_UNSAID = -1.0
"""The chance of a node whose drafter gives none."""


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
        self.host: int | None = None
        """Another model, whose caches it may run over, too."""

    def run(
        self,
        storage: KVStorage,
        block_tables: IntArray,
        cached: Sequence[int],
        roots: Sequence[int],
        limits: Sequence[StretchLimits],
        drafting: StretchDrafting,
        memories: tuple[IntArray, IntArray] | None = None,
        states: StretchStates | None = None,
        adapters: Sequence[object | None] | None = None,
    ) -> list[RoundRecord]:
        """See ``Stretches``."""
        if drafting.cut_rule is not None and not all(
            [guesser is None or guesser.rates for each in drafting.guessers for guesser in each]
        ):
            raise GuesserFault("under a cut rule every guesser needs the rates that its guesses are estimated by")
        if not isinstance(storage, NativeStorage) or storage.model not in (self._model, self.host):
            raise TypeError(f"storage is a {type(storage).__name__} of another backend; allocate it with this one")
        self._ropes.reach(max(map(_end, cached, limits)))
        block_tables = as_int32(block_tables)
        lengths, memory_tables = (None, None) if memories is None else map(as_int32, memories)
        taps = np.array(_taps(drafting.guessers), np.int32)
        sequences, nodes = len(roots), max(1, *[each.budget.nodes for each in limits])
        most_rounds = min([each.rounds for each in limits])
        trees = np.empty((4, most_rounds, sequences, nodes), np.int32)
        chances = np.empty((most_rounds, sequences, nodes))
        rounds, spans = (c.Round * most_rounds)(), (c.Span * (most_rounds * sequences))()
        ends = [np.array(sorted(each.end_tokens), np.int32) for each in limits]
        stretched = (c.Stretched * sequences)(*map(_stretched, cached, roots, limits, ends))
        for place, handle in enumerate(handles_of(adapters)):
            stretched[place].adapter = handle
        entered = []
        for place, to in enumerate(stretched):
            for slot, guesser in enumerate(drafting.guessers[place] if drafting.guessers else ()):
                if guesser is not None:
                    to.guessers[slot], memory = self._enter(guesser, limits[place], _end(cached[place], limits[place]))
                    entered.append((to.guessers[slot], memory))
        after: list[IntArray] = []
        if states is not None:
            pools = [np.array(each, np.int32) for each in states.free]
            after = [np.full(each.rows, -1, np.int32) for each in limits]
            for to, slot, pool, rows in zip(stretched, states.before, pools, after, strict=True):
                to.state, to.free_states = slot, len(pool)
                to.state_slots, to.states_after = address(pool), address(rows)
            ends += pools
        rule, table = (None, None) if drafting.cut_rule is None else _cut_rule(drafting.cut_rule)
        first, size = address(trees), trees.strides[0]
        stretch = c.Stretch(
            sequences=sequences,
            stretched=stretched,
            blocks=block_tables.shape[1],
            pages_per_block=storage.pages_per_block,
            block_tables=address(block_tables),
            memory_blocks=0 if memory_tables is None else memory_tables.shape[1],
            memory_lengths=None if lengths is None else address(lengths),
            memory_tables=None if memory_tables is None else address(memory_tables),
            most_rounds=most_rounds,
            most_seconds=min([each.seconds for each in limits]),
            taps=len(taps),
            tap_layers=address(taps),
            cut_rule=None if rule is None else ctypes.pointer(rule),
            round=rounds,
            span=spans,
            nodes=nodes,
            node_tokens=first,
            node_parents=first + size,
            node_grades=first + 2 * size,
            path=first + 3 * size,
            node_chances=address(chances),
        )
        error = self._library.stretch(self._model, storage.handle, ctypes.byref(stretch))
        del table, ends  # which the library read, with slots of states
        if error is not None:
            fault = ValueError if stretch.at_fault < 0 else GuesserFault
            raise fault(f"the rounds cannot run: {error.decode()}")
        if states is not None:
            states.after = [rows.tolist() for rows in after]
        for slot, each in entered:
            each.guesser.judgements = [
                Judgement(pair >> 1, bool(pair & 1)) for pair in each.judgements[: slot.judged].tolist()
            ]
        tables = [*trees[:, : stretch.rounds].tolist(), chances[: stretch.rounds].tolist()]
        return [
            _record(rounds[i], spans[i * sequences : (i + 1) * sequences], [table[i] for table in tables])
            for i in range(stretch.rounds)
        ]

    def _enter(self, guesser: Guesser, limits: StretchLimits, end: int) -> tuple[c.Guesser, _Entered]:
        """What the library is told of a guesser; ``end``: positions up to the last row that its sequence may have."""
        compiled = guesser.compiled
        if not isinstance(compiled, NativeSuffixText | NativeHeadGrower | NativeOwnWeights):
            raise GuesserFault(f"a {type(compiled).__name__} is no guesser of this backend")
        if compiled.isa != self._library.isa:
            raise GuesserFault(f"a guesser is computed with {compiled.isa}, the model with {self._library.isa}")
        room = limits.rounds * max(limits.budget.nodes, 1)
        entered = _Entered(guesser, np.array(guesser.rates, np.float64), np.empty(room, np.int32))
        told = c.Guesser(rates=address(entered.rates), room=room, judgements=address(entered.judgements))
        pointer = ctypes.pointer(compiled.compiled)
        if isinstance(compiled, NativeHeadGrower):
            told.head = pointer
        elif isinstance(compiled, NativeOwnWeights):
            compiled.reach(end)
            told.own = pointer
        else:
            told.suffix = pointer
        return told, entered


def _end(cached: int, limits: StretchLimits) -> int:
    """Positions up to the last row that a sequence may have."""
    return cached + limits.rows


def _stretched(cached: int, root: int, limits: StretchLimits, end_tokens: IntArray) -> c.Stretched:
    """A sequence for the library, but its guessers and states."""
    sampling = limits.sampling
    return c.Stretched(
        cached=cached,
        root=root,
        room=limits.room,
        nodes=limits.budget.nodes,
        depth=limits.budget.depth,
        most_tokens=limits.tokens,
        ends=len(end_tokens),
        end_tokens=address(end_tokens),
        sampling=None if sampling is None else ctypes.pointer(_sampling(sampling)),
    )


def _sampling(sampling: Sampling) -> c.Sampling:
    depth = -sampling.temperature * math.log(sampling.min_p) if sampling.min_p else math.inf
    return c.Sampling(
        temperature=sampling.temperature,
        depth=depth,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        noise=c.Noise(**sampling.noise._asdict()),
    )


def _taps(guessers: Sequence[Sequence[Guesser | None]]) -> tuple[int, ...]:
    """The states that one of the drafters reads, the same of all sequences."""
    followed = {
        (place, guesser.taps)
        for of_sequence in guessers
        for place, guesser in enumerate(of_sequence)
        if guesser is not None and guesser.taps
    }
    if len(followed) > 1:
        raise GuesserFault(f"{len(followed)} guessers read the target's states; one can")
    return next(iter(followed))[1] if followed else ()


def _cut_rule(rule: CutRule) -> tuple[c.CutRule, NDArray[np.float64]]:
    """For the library, and the table that it points to."""
    seconds = np.array(rule.pass_seconds, np.float64)
    compiled = c.CutRule(
        passes=len(seconds),
        pass_seconds=address(seconds),
        other_seconds=rule.other_seconds,
        plain_seconds=rule.plain_seconds,
        allowance=rule.allowance,
        least_gain=rule.least_gain,
        most_certain=rule.most_certain,
    )
    return compiled, seconds


def _record(done: c.Round, spans: Sequence[c.Span], tables: Sequence[Sequence[list[int]]]) -> RoundRecord:
    """One round; ``tables``: tokens, parents, grades, paths and chances [sequence][node]."""
    return RoundRecord(
        spans=[_span(*each) for each in zip(spans, *tables, strict=True)],
        draft_seconds=list(done.draft_seconds),
        pass_seconds=done.pass_seconds,
        walk_seconds=done.walk_seconds,
        read_seconds=done.read_seconds,
        other_seconds=done.other_seconds,
        row_seconds=done.row_seconds,
        experts=done.experts or None,
    )


def _span(
    done: c.Span, tokens: list[int], parents: list[int], grades: list[int], path: list[int], chances: list[float]
) -> SpanRecord:
    drafted = done.drafted
    chances = chances[:drafted]
    return SpanRecord(
        asked=bool(done.asked),
        tokens=tokens[:drafted],
        parents=parents[:drafted],
        grades=grades[:drafted],
        path=path[: done.accepted],
        token=done.token,
        gains=list(done.gains),
        verified=list(done.verified),
        judged=list(done.judged),
        chances=[] if _UNSAID in chances else chances,
    )
