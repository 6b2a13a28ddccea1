"""Drafters by name behind one: each sequence is drafted for by the one it asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from headstart.drafting.abilities import Plain, bytes_of, fork_or_begin, stretch_drafting
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome, SequenceView, TargetSignals, beam_of
from headstart.drafting.registry import blamed, drafter_name, is_foreign
from headstart.errors import RequestError, closest
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import RoundRecord, StretchDrafting, StretchLimits

MAX_FAULTS = 3
"""A tolerated drafter that has failed so often, and brought nothing meanwhile, is asked no more."""

_NOTHING = TargetSignals()
_ROUNDING = 1e-6
"""By which the sum of a law may be off."""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class DrafterPool:
    """Dispatches by sequence. Sequences that decode plainly are not shown to any drafter.

    Args:
        drafters: by name.
        default: the name of the one that guesses for requests that name none.
        tolerant: an exception of a drafter turns its sequences to plain decoding, which is always right, instead of
            ending the engine's work.
    """

    def __init__(self, drafters: Mapping[str, Drafter], default: str, tolerant: bool = False) -> None:
        self.drafters = dict(drafters)
        self.default = default
        self.tolerant = tolerant
        self.faults = dict.fromkeys(self.drafters, 0)
        """name -> exceptions so far."""
        self.raised: Exception | None = None
        """That of a drafter, which a pool that is not tolerant hands on."""
        self._in_a_row = dict.fromkeys(self.drafters, 0)
        """name -> exceptions since a guess of its was last verified."""
        self._names: dict[int, str] = {}

    @property
    def nbytes(self) -> int:
        """Of the weights and caches that the drafters hold."""
        return sum(bytes_of(drafter) for drafter in self.drafters.values())

    def name_for(self, sequence: SequenceView) -> str | None:
        """The drafter that a sequence asks for, None for plain decoding.

        Raises:
            RequestError: there is none of this name.
        """
        wishes = sequence.speculation
        if not wishes.enabled:
            return None
        name = self.default if wishes.drafter is None else drafter_name(wishes.drafter)
        if name not in self.drafters:
            near = closest(name, self.drafters)
            raise RequestError(
                f"drafter {name!r} is not one of this engine's: {', '.join(self.drafters)}"
                f"{f' (did you mean {near!r}?)' if near else ''}.",
                "speculation",
            )
        return name

    def begin(self, sequence: SequenceView) -> None:
        """A sequence was admitted."""
        name = self.name_for(sequence)
        if name is None or (self.tolerant and self._in_a_row[name] >= MAX_FAULTS):
            return
        self._names[sequence.id] = name
        self._guarded(name, [sequence.id], lambda: self.drafters[name].begin(sequence), None)

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """A beam goes on from where ``source`` stands; both hold the same tokens."""
        name = self._names.get(source.id)
        if name is None:
            return
        self._names[sequence.id] = name
        drafter = self.drafters[name]
        self._guarded(name, [source.id, sequence.id], lambda: fork_or_begin(drafter, source, sequence), None)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """One tree for each sequence, in order."""
        drafts = [DraftTree.empty()] * len(sequences)
        for name, places in self._grouped(sequence.id for sequence in sequences).items():

            def guess(some: Sequence[int], name: str = name) -> None:
                trees = self._proposed(name, [sequences[i] for i in some], [budgets[i] for i in some])
                for place, tree in zip(some, trees, strict=True):
                    drafts[place] = tree

            self._each(name, places, [sequences[i].id for i in places], guess)
        return drafts

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        """Tell each drafter what became of its own sequences."""
        for name, places in self._grouped(outcome.sequence.id for outcome in outcomes).items():

            def tell(some: Sequence[int], name: str = name) -> None:
                own = [outcomes[i] for i in some]
                self.drafters[name].observe(own)
                if any([len(outcome.draft) for outcome in own]):
                    self._in_a_row[name] = 0

            self._each(name, places, [outcomes[i].sequence.id for i in places], tell)

    def lawful(self, sequence: SequenceView, draft: DraftTree, vocab_size: int) -> DraftTree:
        """A sequence's draft, if its draws can be verified, else the empty one: their drafter is at fault. Of another
        package's each row is looked at."""
        rows, draws = draft.draft_probs, draft.draws
        if rows is None or draws is None:
            return draft
        sound = isinstance(rows, Tensor) and rows.dtype == torch.float64 and rows.shape[1:] == (vocab_size,)
        sound = sound and int(draws.rows.max(initial=0)) < len(rows)
        if sound and is_foreign(self._names[sequence.id]):
            drawn = rows[torch.from_numpy(draws.rows).long(), torch.from_numpy(draft.tokens[draws.nodes]).long()]
            sums = rows.sum(1)
            sound = bool((rows >= 0).all() and (drawn > 0).all() and ((sums - 1).abs() < _ROUNDING).all())
        if sound:
            return draft
        wanted = f"rows of float64 probabilities of all {vocab_size} tokens, from which the guesses were drawn"
        self.fail([sequence], ValueError(f"draft_probs are no tensor of {wanted}"))
        return DraftTree.empty()

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """What the drafter of those sequences that have one brings to a stretch of rounds; None: they have several, or
        it must be asked round by round."""
        groups = self._grouped(sequence.id for sequence in sequences)
        if len(groups) != 1:
            return None if groups else StretchDrafting()
        ((name, places),) = groups.items()
        count, riders = len(sequences), len(sequences) - len(places)
        if riders:
            sequences = [sequences[place] for place in places]
            limits = [replace(limits[place], riders=riders) for place in places]
        ids = [sequence.id for sequence in sequences]
        drafting = self._guarded(name, ids, lambda: stretch_drafting(self.drafters[name], sequences, limits), None)
        return drafting.among(places, count) if drafting is not None and riders else drafting

    def fail(self, sequences: Sequence[SequenceView], error: Exception) -> None:
        """The sequences' drafter failed in a stretch, or guessed what cannot be verified; a pool that is not tolerant
        raises the error."""
        for name, places in self._grouped(sequence.id for sequence in sequences).items():
            self._fail(name, [sequences[place].id for place in places], error)

    def learn(
        self, sequences: Sequence[SequenceView], drafting: StretchDrafting, rounds: Sequence[RoundRecord]
    ) -> None:
        """Tell the drafter what became of its guesses."""

        def tell() -> None:
            for guesser in chain.from_iterable(drafting.guessers):
                if guesser is not None:
                    guesser.finish()
            drafting.learn(rounds)

        for name, places in self._grouped(sequence.id for sequence in sequences).items():
            self._guarded(name, [sequences[place].id for place in places], tell, None)

    def end(self, sequence_id: int) -> None:
        """The sequence left. Unknown ids are ignored."""
        name = self._names.pop(sequence_id, None)
        if name is not None:
            self._guarded(name, [], lambda: self.drafters[name].end(sequence_id), None)

    def needs_of(self, sequence: SequenceView) -> TargetSignals:
        """What the sequence's drafter wants of the target's passes."""
        name = self._names.get(sequence.id)
        needs = _NOTHING if name is None else self.drafters[name].needs
        return needs if isinstance(needs, TargetSignals) else _NOTHING

    def guesses_for(self, sequence: SequenceView) -> bool:
        """Whether anything may be guessed for a sequence."""
        drafter = self.drafters.get(self._names.get(sequence.id, ""))
        return drafter is not None and not (isinstance(drafter, Plain) and drafter.plain)

    def taps(self, sequences: Iterable[SequenceView]) -> tuple[int, ...]:
        """The taps of a pass in which these sequences ride."""
        return tuple(dict.fromkeys(tap for sequence in sequences for tap in self.needs_of(sequence).taps))

    def _proposed(
        self, name: str, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]
    ) -> list[DraftTree]:
        trees = self.drafters[name].propose(sequences, budgets)
        if len(trees) != len(sequences):
            raise ValueError(f"drafter {name!r} gave {len(trees)} trees for {len(sequences)} sequences.")
        groups: dict[int, int] = {}
        for sequence, tree, budget in zip(sequences, trees, budgets, strict=True):
            if not isinstance(tree, DraftTree):
                raise TypeError(f"drafter {name!r} gave {type(tree).__name__} in place of a DraftTree.")
            nodes, allowed = len(tree), budget.nodes
            if (beam := beam_of(sequence)) is not None and budget.group_nodes:
                groups[beam.group] = nodes = groups.get(beam.group, 0) + nodes
                allowed = budget.group_nodes
            if nodes > allowed:
                raise ValueError(f"drafter {name!r} gave a tree of {nodes} nodes; {allowed} were allowed.")
        return trees

    def _grouped(self, sequence_ids: Iterable[int]) -> dict[str, list[int]]:
        """name -> places, in order."""
        groups: dict[str, list[int]] = {}
        for place, sequence_id in enumerate(sequence_ids):
            name = self._names.get(sequence_id)
            if name is not None:
                groups.setdefault(name, []).append(place)
        return groups

    def _each(
        self, name: str, places: Sequence[int], sequence_ids: Sequence[int], call: Callable[[Sequence[int]], None]
    ) -> None:
        """Call a drafter for all places; where that fails, for each by itself: whoever makes it fail pays with its own
        guesses."""
        if len(places) == 1 or not self.tolerant:
            self._guarded(name, sequence_ids, lambda: call(places), None)
            return
        try:
            call(places)
            return
        except Exception as error:
            _log.warning("drafter %s failed (%s); each of its sequences is tried by itself.", name, error)
        for place, sequence_id in zip(places, sequence_ids, strict=True):
            if sequence_id in self._names:
                self._guarded(name, [sequence_id], lambda place=place: call([place]), None)  # type: ignore[misc]

    def _guarded(self, name: str, sequence_ids: Iterable[int], call: Callable[[], Result], otherwise: Result) -> Result:
        try:
            return call()
        except Exception as error:
            self._fail(name, sequence_ids, error)
        return otherwise

    def _fail(self, name: str, sequence_ids: Iterable[int], error: Exception) -> None:
        if not self.tolerant:
            self.raised = blamed(name, error)
            raise self.raised
        self.faults[name] += 1
        self._in_a_row[name] += 1
        _log.error("drafter %s failed; its sequences go on with plain decoding.", name, exc_info=error)
        for sequence_id in sequence_ids:
            self._names.pop(sequence_id, None)
            try:
                self.drafters[name].end(sequence_id)
            except Exception:
                _log.exception("drafter %s could not forget sequence %d.", name, sequence_id)
