"""Several rounds at once, where one greedy sequence decodes alone and nothing looks at its logits."""

from __future__ import annotations

import numpy as np

from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget
from headstart.engine.pool import DrafterPool
from headstart.engine.round import commit_tokens, wanted_rows
from headstart.engine.sequence import Sequence
from headstart.models.stretch import GuesserFault, RoundRecord, StretchLimits
from headstart.runner import ModelRunner
from headstart.verification.base import Verdict

MOST_ROUNDS = 8
MOST_SECONDS = 0.05
"""Meanwhile nobody is admitted, aborted or shown tokens. Where a single round takes so long, what an interpreter adds
to it hardly counts."""


def run_stretch(
    runner: ModelRunner, drafters: DrafterPool, sequence: Sequence, budget: DraftBudget, max_context: int
) -> bool:
    """Decode some rounds of a sequence whose prompt is in the cache, as ``decode_round`` would one by one.

    Args:
        budget: of the first round.
        max_context: prompt and output tokens of a sequence.

    Returns:
        Whether any round was run; where not, ``decode_round`` has to.
    """
    cache = runner.cache
    if not runner.runs_stretches or wanted_rows(runner, drafters, sequence) != "best":
        return False
    room = max_context - len(sequence.tokens)
    limits = StretchLimits(
        rounds=MOST_ROUNDS,
        seconds=MOST_SECONDS,
        tokens=min(sequence.stops.max_tokens - sequence.num_output, room),
        room=room,
        end_tokens=sequence.stops.end_tokens | sequence.stops.stop_tokens,
        nodes=budget.nodes,
        depth=budget.depth,
    )
    if cache.blocks_needed(sequence.id, limits.rows) > cache.allocator.num_free:
        return False
    part = drafters.stretch(sequence, limits)
    if part is None:
        return False
    with cache.reserve({sequence.id: limits.rows}):
        try:
            rounds = runner.run_stretch(sequence.id, sequence.tokens[-1], limits, part)
        except GuesserFault as fault:
            drafters.fail(sequence, fault)
            return False
        before, counted = len(sequence.tokens), 0
        while counted < len(rounds) and not sequence.finished:
            _commit(sequence, rounds[counted])
            counted += 1
        cache.commit(sequence.id, range(len(sequence.tokens) - before))
    drafters.learn(sequence, part, rounds[:counted])
    return counted > 0


def _commit(sequence: Sequence, done: RoundRecord) -> None:
    """Make a round's tokens final, up to the one that ends the sequence."""
    draft = DraftTree.empty()
    if done.tokens:
        draft = DraftTree(np.array(done.tokens, np.int32), np.array(done.parents, np.int32))
    commit_tokens(sequence, draft, Verdict(tuple(done.path), done.token))
    stats = sequence.stats
    stats.target_passes += 1
    stats.rounds += 1
    stats.draft_seconds += sum(done.draft_seconds)
    stats.target_seconds += done.pass_seconds
