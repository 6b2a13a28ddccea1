"""Drafts in the target's own cache: what guesses writes its rows after the sequence's tokens, and rolls them back.

The pass that verifies writes all of these rows anew, so that the cache never keeps any but the target's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from headstart.drafting.base import SequenceView
from headstart.drafting.second_models.draft_law import DraftLaw, fit_vocabulary
from headstart.passes.cache.blocks import Room
from headstart.passes.cache.states import Mark
from headstart.passes.draft_tree import DraftBudget
from headstart.passes.rounds import Sampling, StretchDrafting, StretchLimits
from headstart.passes.runner import ModelRunner, Span


class InTargetCache:
    """Reads on in the target's cache until it is rolled back (a ``chains.Reader``).

    Args:
        runner: of the target, or of a backend that shares its cache.
        vocab_size: of the target.
        layers: first layers that are run; None: all.
    """

    def __init__(self, runner: ModelRunner, vocab_size: int, layers: int | None = None) -> None:
        self._runner = runner
        self._layers = layers
        self._vocab_size = vocab_size
        self._marks: dict[int, Mark] = {}
        """id -> where all layers stand."""

    def catch_up(self, sequences: Sequence[SequenceView]) -> dict[int, Tensor]:
        """See ``chains.Reader``."""
        cache = self._runner.cache
        self._marks = {sequence.id: cache.mark(sequence.id) for sequence in sequences}
        return self._read({sequence.id: sequence.tokens[self._marks[sequence.id].length :] for sequence in sequences})

    def read(self, tokens: Mapping[int, int]) -> dict[int, Tensor]:
        """See ``chains.Reader``."""
        return self._read({sequence_id: [token] for sequence_id, token in tokens.items()})

    def roll_back(self) -> None:
        """Leave the cache as it was before ``catch_up``."""
        for sequence_id, mark in self._marks.items():
            self._runner.cache.return_to(sequence_id, mark)
        self._marks = {}

    def _read(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        cache = self._runner.cache
        spans: list[Span] = []
        free = cache.free
        for sequence_id, unread in tokens.items():
            needed = cache.needs(sequence_id, len(unread), final=True)
            if free.holds(needed) and self._has_place(sequence_id, len(unread)):
                free -= needed
                spans.append(Span.chain(sequence_id, unread, "last"))
        if not spans:
            return {}
        with cache.reserve({span.sequence_id: len(span) for span in spans}, final=tokens):
            outputs = self._runner.forward(spans, num_layers=self._layers)
            for span in spans:
                cache.commit(span.sequence_id, range(len(span)))
        return {
            span.sequence_id: fit_vocabulary(output.logits[-1], self._vocab_size)
            for span, output in zip(spans, outputs, strict=True)
        }

    def _has_place(self, sequence_id: int, rows: int) -> bool:
        return self._runner.cache.length(sequence_id) + rows <= self._runner.backend.config.max_positions

    def chains(
        self, sequences: Sequence[SequenceView], laws: Sequence[DraftLaw], length: int
    ) -> list[list[int]] | None:
        """What it says after each sequence, ``length`` tokens or fewer, in one call of the backend.

        None: it has to be asked token by token, since laws need more than their logits, or there is too little room,
        or nothing was decided.
        """
        runner, cache = self._runner, self._runner.cache
        if not (runner.runs_stretches and self._layers is None and sequences and length):
            return None
        if not all([law.point_masses and law.is_plain for law in laws]):
            return None
        if not all([cache.length(each.id) + 1 == len(each.tokens) for each in sequences]):
            return None
        limits = [
            StretchLimits(
                rounds=length,
                seconds=math.inf,
                tokens=length + 1,
                room=length + 1,
                end_tokens=frozenset(),
                budget=DraftBudget(0, 0),
                guesses=False,
                sampling=Sampling.of(law.transforms, sequence.noise),
            )
            for sequence, law in zip(sequences, laws, strict=True)
        ]
        needed = Room()
        for sequence, its in zip(sequences, limits, strict=True):
            needed += cache.needs(sequence.id, its.rows, states=its.states)
        if not (cache.free.holds(needed) and all([self._has_place(each.id, length) for each in sequences])):
            return None
        ids = [sequence.id for sequence in sequences]
        rows = {id: its.rows for id, its in zip(ids, limits, strict=True)}
        states = {id: its.states for id, its in zip(ids, limits, strict=True)}
        with cache.reserve(rows, states=states):
            rounds = runner.run_stretch(ids, [each.tokens[-1] for each in sequences], limits, StretchDrafting())
        if not rounds:
            return None
        return [[done.spans[place].token for done in rounds] for place in range(len(ids))]
