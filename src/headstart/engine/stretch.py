"""Several rounds at once, where sequences decode and nothing but their tokens is read off the target's rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from dataclasses import replace

from headstart.drafting.base import DraftBudget
from headstart.engine.commit import commit_tokens, said_tokens
from headstart.engine.constraint import free_tokens
from headstart.engine.faults import end_alone
from headstart.engine.pool import DrafterPool
from headstart.engine.sequence import Sequence
from headstart.engine.wanted_rows import says_tokens
from headstart.passes.cache.blocks import Room
from headstart.passes.rounds import GuesserFault, RoundRecord, Sampling, StretchLimits
from headstart.passes.runner import ModelRunner

MOST_ROUNDS = 16
AMONG_OTHERS = 8
"""Most rounds of several sequences, which the first to end ends for all, and where text may end a sequence: rounds
behind its end were for nothing."""
SHOWN_SECONDS = 0.05
"""After which no further round is begun at once where tokens are shown as they come. Where a single round takes so
long, what an interpreter adds to it hardly counts."""
UNSEEN_SECONDS = 0.25
"""The same where whole texts are waited for."""
AFTER_NONE = 16
"""Tokens for which rounds go one by one after a stretch in which the first or second could not be decided: a very flat
law may leave many more undecided, and each costs a pass."""

_LEAST_FREE = 4
"""Tokens for which a constraint must demand nothing, for a stretch to be worth its while."""
_ROUNDS_SHARE = 4
"""One of so many slots of states, at most, is for what is between two rounds; the others are for guesses."""
_log = logging.getLogger(__name__)


def run_stretch(
    runner: ModelRunner,
    drafters: DrafterPool,
    decoding: Seq[tuple[Sequence, DraftBudget]],
    max_context: int,
    seconds: float,
) -> bool:
    """Decode some rounds of sequences whose prompts are in the cache, as ``decode_round`` would one by one.

    Args:
        decoding: the sequences, each with its budget of the first round.
        max_context: prompt and output tokens of a sequence.
        seconds: after which no further round is begun.

    Returns:
        Whether any round was run; where not, ``decode_round`` has to.
    """
    sequences = [sequence for sequence, _ in decoding]
    if not runner.runs_stretches or not all([_may_run(drafters, sequence) for sequence in sequences]):
        return False
    limits = _limits(runner, decoding, max_context, seconds)
    drafting = drafters.stretch(sequences, limits) if limits else None
    if drafting is None:
        return False
    ids = [sequence.id for sequence in sequences]
    before = [len(sequence.tokens) for sequence in sequences]
    rows = {id: each.rows for id, each in zip(ids, limits, strict=True)}
    states = {id: each.states for id, each in zip(ids, limits, strict=True)}
    with runner.cache.reserve(rows, states=states):
        try:
            rounds = runner.run_stretch(ids, [sequence.tokens[-1] for sequence in sequences], limits, drafting)
        except GuesserFault as fault:
            drafters.fail(sequences, fault)
            return False
        except Exception as error:
            # Round by round it shows whose it was; what the drafter has begun for the stretch is of no use then.
            _log.warning("%d rounds at once failed (%s); they are run one by one.", limits[0].rounds, error)
            runner.failed_passes += 1
            for sequence in sequences:
                sequence.one_by_one = sequence.num_output + AFTER_NONE
                drafters.end(sequence.id)
                drafters.begin(sequence)
            return False
        counted = _commit(sequences, rounds)
        if len(rounds) <= 1 and not any([sequence.finished for sequence in sequences]):
            # Undecided from the beginning, or nearly; or so slow that it does not matter.
            for sequence in sequences:
                if not sequence.transforms.greedy:
                    sequence.one_by_one = sequence.num_output + AFTER_NONE
        for sequence, length in zip(sequences, before, strict=True):
            said = len(sequence.tokens) - length
            # A stop string may end in the middle of a round; a sequence that is over needs not stand at its end.
            runner.cache.commit(
                sequence.id, range(runner.cache.last_state(sequence.id, said) if sequence.finished else said)
            )
    drafters.learn(sequences, drafting, rounds[:counted])
    return counted > 0


def _may_run(drafters: DrafterPool, sequence: Sequence) -> bool:
    transforms = sequence.transforms
    if sequence.num_output < sequence.one_by_one:
        return False
    free = free_tokens(sequence.constraint)
    if free is not None and free < _LEAST_FREE:
        return False
    return (transforms.only_best or transforms.only_drawn) and says_tokens(drafters, sequence)


def _limits(
    runner: ModelRunner, decoding: Seq[tuple[Sequence, DraftBudget]], max_context: int, seconds: float
) -> list[StretchLimits]:
    """Of each sequence; none where the cache has no room for more than a round."""
    cache = runner.cache
    alone = len(decoding) == 1 and not decoding[0][0].params.stop
    rounds = MOST_ROUNDS if alone else AMONG_OTHERS
    free = cache.free
    share = free.states // len(decoding) if cache.has_states else None
    while rounds > 1:
        limits = [
            _limits_of(sequence, _fitted(budget, rounds, share), rounds, max_context, seconds)
            for sequence, budget in decoding
        ]
        needed = Room()
        for (sequence, _), its in zip(decoding, limits, strict=True):
            needed += cache.needs(sequence.id, its.rows, states=its.states)
        if free.holds(needed) and (share is None or rounds * _ROUNDS_SHARE <= share):
            return limits
        rounds //= 2
    return []


def _fitted(budget: DraftBudget, rounds: int, states: int | None) -> DraftBudget:
    """Fewer guesses where there are fewer slots of states than so many rounds take; None: none are needed."""
    if states is None:
        return budget
    return replace(budget, nodes=max(min(budget.nodes, states - rounds - 1), 0))


def _limits_of(sequence: Sequence, budget: DraftBudget, rounds: int, max_context: int, seconds: float) -> StretchLimits:
    room, stops = max_context - len(sequence.tokens), sequence.stops
    free = free_tokens(sequence.constraint)
    return StretchLimits(
        rounds=rounds,
        seconds=seconds,
        tokens=min(stops.max_tokens - sequence.num_output, room, room if free is None else free),
        room=room,
        end_tokens=stops.end_tokens | stops.stop_tokens,
        budget=budget,
        sampling=sampling_of(sequence),
    )


def sampling_of(sequence: Sequence) -> Sampling | None:
    """How its tokens are drawn; None where the best one is said."""
    return Sampling.of(sequence.transforms, sequence.noise)


def _commit(sequences: Seq[Sequence], rounds: Seq[RoundRecord]) -> int:
    """Make the rounds' tokens final, up to the round that ends a sequence; returns how many rounds count."""
    for counted, done in enumerate(rounds, start=1):
        draft_seconds, finished = sum(done.draft_seconds), False
        for sequence, span in zip(sequences, done.spans, strict=True):
            try:
                commit_tokens(sequence, span.path, *said_tokens(span.tokens, span.parents, span.path, span.token))
            except Exception as error:
                end_alone(sequence, error)
            stats = sequence.stats
            stats.drafted += len(span.tokens)
            stats.target_passes += 1
            stats.rounds += 1
            stats.draft_seconds += draft_seconds
            stats.target_seconds += done.pass_seconds
            finished |= sequence.finished
        if finished:
            return counted
    return len(rounds)
