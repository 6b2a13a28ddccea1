"""One pass and everything that follows from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.drafting.base import RoundOutcome
from headstart.engine.beams import BeamGroup, Place
from headstart.engine.commit import NO_GUESS, commit_tokens, said_tokens
from headstart.engine.constraint import TokenConstraint, prune
from headstart.engine.faults import end_alone, owner
from headstart.engine.forced import with_forced
from headstart.engine.law import TargetLaw
from headstart.engine.outputs import TokenLogprobs
from headstart.engine.pool import DrafterPool
from headstart.engine.round_clock import RoundClock
from headstart.engine.schedule import PassSchedule
from headstart.engine.sequence import Sequence
from headstart.engine.wanted_rows import best_of_rows, wanted_rows
from headstart.passes.draft_tree import DraftTree, TreeLaw
from headstart.passes.runner import ModelRunner, Span, SpanOutput, Wanted
from headstart.sampling.transforms import logprobs
from headstart.verification.base import Verdict
from headstart.verification.verify import verify

_log = logging.getLogger(__name__)


Path = tuple[int, ...]
Begin = Callable[[str, Seq[Sequence]], None]
"""Is told what is being done, and for whom."""


class TimedPass(NamedTuple):
    """What ``PassCosts`` is told of one that reads prompts; ``row_keys`` of others are not counted."""

    rows: int
    seconds: float
    row_keys: float


def decode_round(
    runner: ModelRunner, drafters: DrafterPool, schedule: PassSchedule, begin: Begin, began: float
) -> TimedPass:
    """Draft, run ONE pass over prompt chunks and trees together, verify, commit, tell the drafters.

    Plain decoding is the same round with the empty tree. The schedule has made sure of room in the cache, in a step
    that ``began`` before.
    """
    work = _Round(runner, drafters, schedule, begin, began)
    work.propose()
    rows = work.room()
    row_keys = 0.0
    if schedule.reading:
        row_keys = sum([count * (runner.cache.length(id) + count / 2) for id, count in rows.items()])
    with runner.cache.reserve(rows, work.read_ids):
        work.run_pass()
        work.verify()
        work.commit()
    work.observe()
    return TimedPass(sum(rows.values()), work.pass_seconds, row_keys)


@dataclass
class _Decoding:
    """What one sequence goes through in a round."""

    sequence: Sequence
    draft: DraftTree
    span: Span
    output: SpanOutput | None = None
    top_ids: NDArray[np.int64] | None = None
    law: TargetLaw | None = None
    verdict: Verdict | None = None


class _Round:
    """The round of one schedule, step by step."""

    def __init__(
        self, runner: ModelRunner, drafters: DrafterPool, schedule: PassSchedule, begin: Begin, began: float
    ) -> None:
        self._begin = begin
        self._runner = runner
        self._drafters = drafters
        self._schedule = schedule
        self._clock = RoundClock(began)
        self._chunks = [_chunk(runner, sequence, count) for sequence, count in schedule.reading]
        self._read: list[SpanOutput | None] = []
        """[chunk]; None: it could not be computed."""
        self._decoding: list[_Decoding] = []
        self._places: dict[BeamGroup, list[Place]] = {}
        """Of the groups that were searched."""
        self._outcomes: list[RoundOutcome] = []

    def propose(self) -> None:
        """Every drafter guesses for its sequences."""
        sequences = [sequence for sequence, _ in self._schedule.decoding]
        budgets = [budget for _, budget in self._schedule.decoding]
        drafts = self._drafters.propose(sequences, budgets) if sequences else []
        vocab_size = self._runner.backend.config.vocab_size
        for sequence, guessed, budget in zip(sequences, drafts, budgets, strict=True):
            draft = self._drafters.lawful(sequence, guessed, vocab_size)
            # What a constraint knows of a beam begins with its whole output, which is no path of its tree.
            constraint = sequence.constraint if sequence.group is None else None
            kept = draft if constraint is None else _pruned(draft, constraint)
            if constraint is not None and self._drafters.guesses_for(sequence):
                kept = with_forced(kept, constraint, budget)
            span = _tree(sequence, kept, wanted_rows(self._runner, self._drafters, sequence))
            self._decoding.append(_Decoding(sequence, kept, span))
        self._clock.drafted()

    @property
    def _spans(self) -> list[Span]:
        return [*self._chunks, *[each.span for each in self._decoding]]

    @property
    def pass_seconds(self) -> float:
        return self._clock.pass_seconds

    def room(self) -> dict[int, int]:
        """id -> rows that the pass writes."""
        return {span.sequence_id: len(span) for span in self._spans}

    @property
    def read_ids(self) -> set[int]:
        """Sequences that read a prompt's chunk."""
        return {span.sequence_id for span in self._chunks}

    def run_pass(self) -> None:
        """The target computes all rows; what a drafter asked to see of them is looked up."""
        taps = self._drafters.taps(self._schedule.riding)
        outputs: list[SpanOutput | None]
        try:
            outputs = [*self._runner.forward(self._spans, taps)]
        except Exception as error:
            outputs = self._one_by_one(error)
        self._clock.passed()
        self._read = outputs[: len(self._chunks)]
        for each, output in zip(self._decoding, outputs[len(self._chunks) :], strict=True):
            each.output = output
            each.top_ids = None if output is None else best_of_rows(self._drafters, each.sequence, output)
        self._clock.signalled()

    def _one_by_one(self, error: Exception) -> list[SpanOutput | None]:
        """The pass has failed: compute each request's rows by themselves, and where that fails too, without guesses and
        taps, whose drafter is at fault then. Whose plain rows still cannot be computed ends with its error."""
        places: dict[Sequence | BeamGroup, list[int]] = {}
        riding = self._schedule.riding
        for place, sequence in enumerate(riding):
            places.setdefault(owner(sequence), []).append(place)
        if len(places) > 1:
            self._runner.failed_passes += 1
            _log.warning("a pass of %d requests failed (%s); each is computed by itself.", len(places), _named(error))
        outputs: list[SpanOutput | None] = [None] * len(riding)

        def attempt(own: list[int], taps: tuple[int, ...]) -> Exception | None:
            try:
                computed = self._runner.forward([self._spans[place] for place in own], taps)
            except Exception as fault:
                return fault
            for place, output in zip(own, computed, strict=True):
                outputs[place] = output
            return None

        for whose, own in places.items():
            self._begin("a pass", [riding[own[0]]])
            wanted = self._drafters.taps(riding[place] for place in own)
            fault = attempt(own, wanted) if len(places) > 1 else error
            guessed = [each for each in self._decoding if owner(each.sequence) is whose and len(each.draft)]
            if fault is not None and (guessed or wanted):
                for each in guessed:
                    each.draft = DraftTree.empty()
                    each.span = _tree(each.sequence, each.draft, each.span.logits)
                with_drafter, fault = fault, attempt(own, ())
                if fault is None:
                    asking = [riding[place] for place in own if self._drafters.needs_of(riding[place]).taps]
                    self._drafters.fail(asking or [each.sequence for each in guessed], with_drafter)
            if fault is not None:
                end_alone(whose, fault)
        return outputs

    def _blame(self, whose: Sequence | BeamGroup, error: Exception) -> None:
        """End a request by an error of its own."""
        if error is self._drafters.raised:
            raise error
        end_alone(whose, error)

    def verify(self) -> None:
        """What the target says of every tree. A sequence, or group of beams, whose law cannot be had fails alone."""
        for group in self._schedule.groups:
            self._begin("the search", [group.head])
            try:
                self._search(group)
            except Exception as error:
                self._blame(group, error)
        for each in self._decoding:
            if each.sequence.group is not None or each.output is None:
                continue
            self._begin("the law", [each.sequence])
            try:
                self._judge(each, each.output)
            except Exception as error:
                self._blame(each.sequence, error)

    def _judge(self, each: _Decoding, output: SpanOutput) -> None:
        sequence, draft = each.sequence, each.draft
        law = TargetLaw(output, draft, sequence)
        verdict = law.heard(_verify(sequence, draft, law))
        if sequence.trace is not None and sequence.started is not None:
            sequence.trace.record(
                sequence.tokens[-1],
                draft,
                verdict,
                law,
                started=sequence.started,
                draft_seconds=self._clock.draft_seconds,
                pass_seconds=self._clock.pass_seconds,
            )
        each.law, each.verdict = law, verdict

    def _search(self, group: BeamGroup) -> None:
        own = self._beams_of(group)
        if not group.finished:
            laws = [TargetLaw(each.output, each.draft, each.sequence) for each in own if each.output is not None]
            self._places[group] = group.advance([each.draft for each in own], laws)

    def _beams_of(self, group: BeamGroup) -> list[_Decoding]:
        return [each for each in self._decoding if each.sequence.group is group]

    def commit(self) -> None:
        """Prompt chunks and accepted paths become final, in the sequences and in the cache."""
        rows = sum(map(len, self._spans))
        for (sequence, count), span, output in zip(self._schedule.reading, self._chunks, self._read, strict=True):
            if output is None or sequence.finished:
                continue
            try:
                self._commit_chunk(sequence, count, span, output, rows)
            except Exception as error:
                self._blame(owner(sequence), error)
        for each in self._decoding:
            if each.verdict is None:
                continue
            self._begin("the text", [each.sequence])
            try:
                self._commit_path(each, each.verdict, rows)
            except Exception as error:
                self._blame(each.sequence, error)
        for group, places in self._places.items():
            self._clock.charge_round(group.head.stats)
            try:
                if group.search.done:
                    group.finish()
                else:
                    self._move(group, places, rows)
            except Exception as error:
                self._blame(group, error)

    def _move(self, group: BeamGroup, places: list[Place], rows: int) -> None:
        own, cache = self._beams_of(group), self._runner.cache
        first = cache.length(own[0].sequence.id)
        for continued in group.move(places, cache, self._drafters):
            each, place = own[continued.source], continued.place
            self._note(each, continued.beam, first, place.path, place.tokens, rows)

    def _note(
        self, each: _Decoding, sequence: Sequence, first: int, accepted: Path, committed: Path, rows: int
    ) -> None:
        """Keep what came of a tree, for the drafters; ``first``: its root's position."""
        assert each.output is not None
        self._outcomes.append(
            RoundOutcome(
                sequence=sequence,
                first_position=first,
                row_tokens=each.span.tokens,
                draft=each.draft,
                accepted=accepted,
                committed=committed,
                top_ids=each.top_ids,
                hidden=each.output.hidden,
                pass_rows=rows,
                pass_seconds=self._clock.pass_seconds,
                signal_seconds=self._clock.signal_seconds,
                ahead_seconds=self._clock.ahead_seconds,
                pass_experts=each.output.pass_experts,
            )
        )

    def _commit_chunk(self, sequence: Sequence, count: int, span: Span, output: SpanOutput, rows: int) -> None:
        cache = self._runner.cache
        first = cache.length(sequence.id)
        outcome = RoundOutcome(
            sequence=sequence,
            first_position=first,
            row_tokens=span.tokens,
            draft=DraftTree.empty(),
            hidden=output.hidden,
            pass_rows=rows,
            pass_seconds=self._clock.pass_seconds,
            pass_experts=output.pass_experts,
        )
        listening = self._schedule.listening.get(sequence.id, ())
        self._outcomes += [outcome, *(replace(outcome, sequence=other) for other in listening)]
        _note_prompt(sequence, first, output)
        cache.commit(sequence.id, range(count))
        self._clock.charge_prefill(sequence.stats)

    def _commit_path(self, each: _Decoding, verdict: Verdict, rows: int) -> None:
        sequence, draft, cache = each.sequence, each.draft, self._runner.cache
        stats = sequence.stats
        stats.drafted += draft.num_drafted
        stats.sampled_rounds += draft.law is not TreeLaw.POINT_MASS
        said = said_tokens(draft.token_list, _guessed_parents(draft), verdict.path, verdict.token)
        committed = commit_tokens(sequence, verdict.path, *said, each.law)
        kept = verdict.path[: len(committed) - 1]
        self._note(each, sequence, cache.length(sequence.id), kept, committed, rows)
        cache.commit(sequence.id, [0, *(node + 1 for node in kept)])
        self._clock.charge_round(stats)

    def observe(self) -> None:
        """Tell the drafters."""
        self._begin("drafting", self._schedule.riding)
        told = time.perf_counter()
        self._drafters.observe(self._outcomes)
        # Drafters that read prompts do it here; beside that, what they hear of a round hardly takes time.
        for sequence, _ in self._schedule.reading:
            sequence.stats.draft_prefill_seconds += time.perf_counter() - told


def _pruned(draft: DraftTree, constraint: TokenConstraint) -> DraftTree:
    """The whole draft where the constraint cannot tell: what it says then is heard when the draft is verified."""
    try:
        return prune(draft, constraint)
    except Exception:
        return draft


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _guessed_parents(draft: DraftTree) -> list[int]:
    """[node] the parent; probe nodes are no guesses."""
    parents = draft.parents if draft.probe is None else np.where(draft.probe, NO_GUESS, draft.parents)
    found: list[int] = parents.tolist()
    return found


def _verify(sequence: Sequence, draft: DraftTree, law: TargetLaw) -> Verdict:
    wishes = sequence.speculation
    return verify(draft, law, sequence.noise, len(sequence.tokens) - 1, wishes.verify, wishes.lenience, wishes.typical)


def _chunk(runner: ModelRunner, sequence: Sequence, count: int) -> Span:
    first = runner.cache.length(sequence.id)
    wanted: Wanted = "none" if sequence.params.prompt_logprobs is None else "all"
    return Span.chain(sequence.id, sequence.tokens[first : first + count], wanted)


def _note_prompt(sequence: Sequence, first: int, output: SpanOutput) -> None:
    """Log-probabilities of the prompt tokens that a chunk predicts, each once (a preempted prompt is read again)."""
    if sequence.params.prompt_logprobs is None:
        return
    for position, row in enumerate(output.logits, start=first + 1):
        if len(sequence.prompt_logprobs) + 1 == position < sequence.prompt_length:
            token = sequence.tokens[position]
            sequence.prompt_logprobs.append(
                TokenLogprobs(token, *logprobs(row, token, sequence.params.prompt_logprobs))
            )


def _tree(sequence: Sequence, draft: DraftTree, wanted: Wanted) -> Span:
    """Row 0 is the root, row i + 1 node i of the draft."""
    return Span(
        sequence.id,
        np.array([sequence.tokens[-1], *draft.token_list], dtype=np.int32),
        np.array([-1, *[parent + 1 for parent in draft.parents.tolist()]], dtype=np.int32),
        wanted,
        inputs=None if draft.inputs is None else draft.inputs.moved(1),
    )
