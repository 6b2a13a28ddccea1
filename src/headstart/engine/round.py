"""One pass and everything that follows from it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headstart.draft_tree import ROOT, DraftTree, TreeLaw
from headstart.drafting.base import RoundOutcome
from headstart.engine.best_ids import best_ids
from headstart.engine.commit import commit_tokens
from headstart.engine.constraint import prune
from headstart.engine.law import TargetLaw
from headstart.engine.outputs import SequenceStats, TokenLogprobs
from headstart.engine.pool import DrafterPool
from headstart.engine.schedule import Plan
from headstart.engine.sequence import Sequence
from headstart.errors import LogitsError, RequestError
from headstart.runner import ModelRunner, Span, SpanOutput, Wanted
from headstart.sampling.transforms import logprobs
from headstart.verification.base import Verdict
from headstart.verification.verify import verify


def decode_round(runner: ModelRunner, drafters: DrafterPool, plan: Plan) -> None:
    """Draft, run ONE pass over prompt chunks and trees together, verify, commit, tell the drafters.

    Plain decoding is the same round with the empty tree. The plan has made sure of room in the cache.
    """
    clock = _Clock()
    decoding = [sequence for sequence, _ in plan.decoding]
    drafts = drafters.propose(decoding, [budget for _, budget in plan.decoding]) if decoding else []
    drafts = [
        draft if sequence.constraint is None else prune(draft, sequence.constraint)
        for sequence, draft in zip(decoding, drafts, strict=True)
    ]
    clock.drafted()
    chunks = [_chunk(runner, sequence, count) for sequence, count in plan.reading]
    trees = [
        _tree(sequence, draft, wanted_rows(runner, drafters, sequence))
        for sequence, draft in zip(decoding, drafts, strict=True)
    ]
    spans = chunks + trees
    taps = drafters.taps([sequence for sequence, _ in (*plan.reading, *plan.decoding)])
    rows = sum(map(len, spans))
    outcomes = []
    with runner.cache.reserve({span.sequence_id: len(span) for span in spans}):
        outputs = runner.forward(spans, taps)
        clock.passed()
        for (sequence, count), span, output in zip(plan.reading, spans, outputs, strict=False):
            first = runner.cache.length(sequence.id)
            outcome = RoundOutcome(
                sequence,
                first,
                span.tokens,
                DraftTree.empty(),
                hidden=output.hidden,
                pass_rows=rows,
                pass_seconds=clock.pass_seconds,
            )
            outcomes += [outcome, *(replace(outcome, sequence=other) for other in plan.listening.get(sequence.id, ()))]
            _note_prompt(sequence, first, output)
            runner.cache.commit(sequence.id, range(count))
            clock.charge_prefill(sequence.stats)
        verified = outputs[len(chunks) :]
        best = [_best(drafters, sequence, output) for sequence, output in zip(decoding, verified, strict=True)]
        clock.signalled()
        for sequence, draft, span, output, top_ids in zip(decoding, drafts, trees, verified, best, strict=True):
            try:
                verdict = _verify(sequence, draft, law := TargetLaw(output, draft, sequence))
            except RequestError as error:
                sequence.fail(str(error), refused=not isinstance(error, LogitsError), field=error.field)
                continue
            if sequence.trace is not None and sequence.started is not None:
                sequence.trace.record(
                    sequence.tokens[-1],
                    draft,
                    verdict,
                    law,
                    started=sequence.started,
                    draft_seconds=clock.draft_seconds,
                    pass_seconds=clock.pass_seconds,
                )
            stats = sequence.stats
            stats.drafted += draft.num_drafted
            stats.sampled_rounds += draft.law is not TreeLaw.POINT_MASS
            committed = commit_tokens(sequence, verdict.path, *_said(draft, verdict), law)
            kept = verdict.path[: len(committed) - 1]
            outcomes.append(
                RoundOutcome(
                    sequence,
                    runner.cache.length(sequence.id),
                    span.tokens,
                    draft,
                    kept,
                    committed,
                    top_ids,
                    output.hidden,
                    rows,
                    clock.pass_seconds,
                    clock.signal_seconds,
                )
            )
            runner.cache.commit(sequence.id, [0, *(node + 1 for node in kept)])
            clock.charge_round(sequence.stats)
    told = time.perf_counter()
    drafters.observe(outcomes)
    # Drafters that read prompts do it here; beside that, what they hear of a round hardly takes time.
    for sequence, _ in plan.reading:
        sequence.stats.draft_prefill_seconds += time.perf_counter() - told


def _verify(sequence: Sequence, draft: DraftTree, law: TargetLaw) -> Verdict:
    wishes = sequence.speculation
    return verify(draft, law, sequence.noise, len(sequence.tokens) - 1, wishes.verify, wishes.lenience, wishes.typical)


def _said(draft: DraftTree, verdict: Verdict) -> tuple[list[int], list[int | None]]:
    """The tokens of a verdict, and the drafter's first guess in the place of each."""
    tokens, children = draft.token_list, draft.children
    guesses = [children.get(node) for node in (ROOT, *verdict.path)]
    return (
        [*[tokens[node] for node in verdict.path], verdict.token],
        [None if found is None else tokens[found[0]] for found in guesses],
    )


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


def wanted_rows(runner: ModelRunner, drafters: DrafterPool, sequence: Sequence) -> Wanted:
    """What a verified row is asked for: its logits, or no more than its best token where nothing else is looked at."""
    enough = runner.backend.finds_best and sequence.transforms.only_best and says_enough(drafters, sequence)
    return "best" if enough else "all"


def says_enough(drafters: DrafterPool, sequence: Sequence) -> bool:
    """Whether nothing is read off the target's rows but the tokens that it says."""
    return (
        sequence.constraint is None
        and sequence.params.logprobs is None
        and sequence.trace is None
        and sequence.speculation.lenience is None
        and sequence.speculation.typical is None
        and drafters.needs_of(sequence).top_ids <= 1
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


def _best(drafters: DrafterPool, sequence: Sequence, output: SpanOutput) -> NDArray[np.int64] | None:
    """The best ids of every row, as many as the sequence's drafter asks for."""
    count = drafters.needs_of(sequence).top_ids
    if count and output.best is not None:
        return output.best[:, None].astype(np.int64)
    return best_ids(output.logits, count) if count and len(output.logits) else None


@dataclass
class _Clock:
    """Where the time of a pass went; every sequence that rode in it is charged the whole."""

    start: float = 0.0
    draft_end: float = 0.0
    pass_end: float = 0.0
    signal_end: float = 0.0

    def __post_init__(self) -> None:
        self.start = time.perf_counter()

    def drafted(self) -> None:
        self.draft_end = time.perf_counter()

    def passed(self) -> None:
        self.pass_end = time.perf_counter()

    def signalled(self) -> None:
        self.signal_end = time.perf_counter()

    @property
    def draft_seconds(self) -> float:
        return self.draft_end - self.start

    @property
    def pass_seconds(self) -> float:
        return self.pass_end - self.draft_end

    @property
    def signal_seconds(self) -> float:
        return self.signal_end - self.pass_end

    def charge_prefill(self, stats: SequenceStats) -> None:
        stats.target_passes += 1
        stats.prefill_seconds += self.pass_end - self.start

    def charge_round(self, stats: SequenceStats) -> None:
        stats.target_passes += 1
        stats.rounds += 1
        stats.draft_seconds += self.draft_seconds
        stats.target_seconds += self.pass_seconds
