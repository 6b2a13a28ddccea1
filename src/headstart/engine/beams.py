"""Beams: a group of sequences over shared pages that are searched together, fork off each other, and end together.

The group's results are the sequences that a caller has queued; its beams are sequences of the engine's own. A beam
grows by what the search has chosen. Where it continues a beam more than once, the others are forked off it; where it
does not, the beam is dropped. Which tokens those are is decided in ``verification.beam`` alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import BeamView
from headstart.drafting.common_prefix import common_prefix
from headstart.engine.commit import count_at, origin_of
from headstart.engine.law import TargetLaw
from headstart.engine.outputs import FinishReason, TokenLogprobs, TokenOrigin
from headstart.engine.pool import DrafterPool
from headstart.engine.sequence import Sequence
from headstart.errors import RequestError
from headstart.passes.cache.paged import PagedCache
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.verification.beam import BeamRules, BeamSearch, Path

_IDS = count(-1, -1)
"""Of beams; those of sequences that callers queue are not below 0."""


@dataclass
class _Said:
    """What is told of a token besides its score."""

    origin: TokenOrigin
    logprobs: TokenLogprobs | None


@dataclass(frozen=True)
class Place:
    """Where a path of the search stands in the trees of a round."""

    beam: int
    """Which of the beams that the round began with."""
    node: int | None = ROOT
    """The node of its last token; None: that was not guessed, and no row was computed after it."""
    path: tuple[int, ...] = ()
    """Nodes before that one, from the first level down."""
    tokens: tuple[int, ...] = ()
    """What it has said in this round."""

    def after(self, token: int, drafts: Seq[DraftTree]) -> Place:
        """One token further on. Only where a row was computed."""
        assert self.node is not None
        path = self.path if self.node == ROOT else (*self.path, self.node)
        return Place(self.beam, drafts[self.beam].child_with(self.node, token), path, (*self.tokens, token))

    @property
    def kept_rows(self) -> list[int]:
        """Rows of its beam that it keeps in the cache: all that it has said, but the last token, which is not there."""
        return [0, *(node + 1 for node in self.path)]


@dataclass(frozen=True)
class Continued:
    """A beam after a round, and how it has come to be."""

    beam: Sequence
    source: int
    """Which of the beams that the round began with it was, or was forked off."""
    place: Place


class BeamGroup:
    """One search.

    Args:
        results: the sequences that will hold its best paths, the best first. They wait for its end.
    """

    def __init__(self, results: Seq[Sequence]) -> None:
        self.results = list(results)
        self.beams: list[Sequence] = []
        """In the order of ``search.live``; none before it begins."""
        self.asleep: list[Sequence] = []
        """Beams that wait until the first one has read again what they share, after a preemption."""
        self._search: BeamSearch | None = None
        for result in self.results:
            result.group = self

    @property
    def width(self) -> int:
        """Beams at most."""
        return self.results[0].params.beam_width or 1

    @property
    def head(self) -> Sequence:
        """The result that stands for the group in a queue."""
        return self.results[0]

    @property
    def finished(self) -> bool:
        return self.head.finished

    @property
    def search(self) -> BeamSearch:
        assert self._search is not None
        return self._search

    def first_beam(self) -> Sequence:
        """The beam that reads for all others: the only one that there is at first."""
        if not self.beams:
            head = self.head
            params, stops = head.params, head.stops
            self._search = BeamSearch(
                BeamRules(
                    self.width,
                    stops.max_tokens,
                    stops.end_tokens | stops.stop_tokens,
                    params.length_penalty,
                    params.early_stopping,
                ),
                None if head.text is None else head.text.watch(),
            )
            self.beams = [head.forked(next(_IDS))]
            self._show()
        return self.beams[0]

    def is_read(self, cache: PagedCache) -> bool:
        """Whether all its beams stand in the cache, so that it can be searched further."""
        return not self.asleep and all(cache.length(beam.id) == len(beam.tokens) - 1 for beam in self.beams)

    def wake(self, cache: PagedCache, drafters: DrafterPool) -> None:
        """Let the beams that are asleep begin with what the first one has read: all of them, or none if that fails."""
        first = self.beams[0]
        try:
            for beam in self.asleep:
                length = common_prefix(first.tokens, beam.tokens, len(beam.tokens) - 1)
                cache.fork(first.id, beam.id)
                cache.truncate(beam.id, length)
                drafters.begin(beam)
        except Exception:
            _forget(self.asleep, cache, drafters)
            raise
        self.asleep = []

    def advance(self, drafts: Seq[DraftTree], laws: Seq[TargetLaw]) -> list[Place]:
        """Search as many tokens further as the rows of a round allow, at least one.

        Args:
            drafts: [beam] its tree; ``laws``: what the target says along it.

        Returns:
            Where the paths that are searched on stand; none where the search has ended.

        Raises:
            RequestError: a row's logits give no law.
        """
        search, stats = self.search, self.head.stats
        places = [Place(beam) for beam in range(len(drafts))]
        may_rise = self.head.transforms.may_raise
        stats.drafted += sum(draft.num_drafted for draft in drafts)
        steps = 0
        while not search.done:
            rows = [_known_row(place, laws) for place in places]
            ended = search.step(rows, may_rise)
            if ended is None:
                break
            new = [*ended, *search.live]
            if steps:
                parents = {id(path.parent): path.parent for path in new}
                for parent in parents.values():
                    assert parent is not None
                    parent.note.origin = TokenOrigin.ACCEPTED
                stats.accepted += len(parents)
                count_at(stats.accepted_per_position, steps - 1)
            for path in new:
                path.note = self._said(path, places[path.beam], drafts, laws, steps)
            places = [places[path.beam].after(path.token, drafts) for path in search.live]
            if any(place.node is not None for place in places):
                count_at(stats.drafted_per_position, steps)
            steps += 1
        stats.beam_steps += steps
        while len(stats.accepted_per_position) < len(stats.drafted_per_position):
            stats.accepted_per_position.append(0)
        return places

    def move(self, places: Seq[Place], cache: PagedCache, drafters: DrafterPool) -> list[Continued]:
        """Grow, fork and drop beams. The rows of the round are still reserved.

        Args:
            places: what ``advance`` has returned.
        """
        before, live = self.beams, [self.beams[place.beam] for place in places]
        seen, new = set[int](), list[Sequence]()
        try:
            for i, place in enumerate(places):
                source = before[place.beam]
                if place.beam in seen:
                    live[i] = beam = source.forked(next(_IDS))
                    new.append(beam)
                    cache.fork(source.id, beam.id)
                    cache.take(beam.id, source.id, place.kept_rows)
                    drafters.fork(source, beam)
                seen.add(place.beam)
        except Exception:
            _forget(new, cache, drafters)
            raise
        for beam in before:
            if beam not in live:
                cache.remove(beam.id)
                drafters.end(beam.id)
        for beam, place in zip(live, places, strict=True):
            if beam is before[place.beam]:
                cache.commit(beam.id, place.kept_rows)
            beam.extend(place.tokens)
        self.beams = live
        self._show()
        return [Continued(beam, place.beam, place) for beam, place in zip(live, places, strict=True)]

    def suspend(self) -> None:
        """Its beams have been forgotten; the first of them will read for the others."""
        self.asleep = self.beams[1:]
        self.head.stats.preemptions += 1

    def cut(self) -> None:
        """There is no room to go on: the beams end as they are."""
        if self.search.steps:
            self.search.cut()
            self.finish()
            return
        for result in self.results:
            result.finish_reason = FinishReason.LENGTH
        self._end()

    def finish(self) -> None:
        """The search is over: the results become its best paths."""
        found = self.search.ended
        for result, path in zip(self.results, found, strict=False):
            for step in path.line():
                said: _Said = step.note
                if said.logprobs is not None:
                    result.logprobs.append(said.logprobs)
                result.origins.append(said.origin)
                result.rejected.append(None)
                result.commit(step.token)
            result.score = float(path.score)
            if not result.finished:
                result.finish_reason = FinishReason.LENGTH
        for result in self.results[len(found) :]:
            result.fail(
                f"the search has found {len(found)} outputs and no more; ask for a smaller n.", refused=True, field="n"
            )
        self._end()

    def fail(self, message: str, refused: bool = False, field: str | None = None, out_of_memory: bool = False) -> None:
        """End all of it with an error."""
        for sequence in (*self.results, *self.beams):
            sequence.fail(message, refused, field, out_of_memory)
        self._end()

    def abort(self) -> None:
        """End all of it."""
        for result in self.results:
            if not result.finished:
                result.finish_reason = FinishReason.ABORT
        self._end()

    def _end(self) -> None:
        head = self.head
        for sequence in (*self.results[1:], *self.beams):
            sequence.prompt_logprobs = head.prompt_logprobs
            if sequence.finish_reason is None:
                sequence.finish_reason = FinishReason.ABORT
        if head.started is not None:
            for result in self.results:
                result.stats.seconds = time.perf_counter() - head.started

    def _show(self) -> None:
        """Tell drafters where the beams stand."""
        ends = self.search.rules.end_tokens
        for beam, path in zip(self.beams, self.search.live, strict=True):
            beam.beam = BeamView(self.head.id, self.width, float(path.score), ends)

    def _said(self, path: Path, place: Place, drafts: Seq[DraftTree], laws: Seq[TargetLaw], steps: int) -> _Said:
        assert place.node is not None
        wanted = self.head.params.logprobs
        logprobs = None if wanted is None else laws[place.beam].logprobs(place.node, path.token, wanted)
        guessed = bool(drafts[place.beam].children.get(place.node))
        return _Said(origin_of(False, guessed, steps), logprobs)


def _known_row(place: Place, laws: Seq[TargetLaw]) -> NDArray[np.float32] | None:
    """What the target says where a path stands; None: no row was computed there, or it gives no law after a guess, of
    which the round tells that begins there."""
    if place.node is None:
        return None
    try:
        return laws[place.beam].log_probs(place.node)
    except RequestError:
        if place.node == ROOT:
            raise
        return None


def _forget(beams: Seq[Sequence], cache: PagedCache, drafters: DrafterPool) -> None:
    for beam in beams:
        if beam.id in cache:
            cache.remove(beam.id)
        drafters.end(beam.id)
