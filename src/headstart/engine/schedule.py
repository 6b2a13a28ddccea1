"""Which sequences share the next pass, and how many rows each may have. Sees row counts, never method names."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from headstart.drafting.base import DraftBudget
from headstart.drafting.planning.pass_costs import PassCosts
from headstart.engine.beams import BeamGroup
from headstart.engine.chunks import chunk_rows
from headstart.engine.sequence import Sequence
from headstart.passes.cache.blocks import Room
from headstart.passes.cache.paged import PagedCache

_NONE = DraftBudget(0, 0)


@dataclass(frozen=True)
class Limits:
    """Bounds of a pass, in rows, and of a sequence, in tokens."""

    max_sequences: int = 16
    """Sequences that decode together."""
    max_rows: int = 512
    """Rows of a pass; decoding comes first, prompt chunks share the rest, or less of it where that pays."""
    draft_rows: int = 31
    """Guessed rows of a pass, over all its sequences: up to a machine's knee they cost next to nothing."""
    max_context: int = 2048
    """Prompt and output tokens of a sequence."""
    max_source: int = 0
    """Positions of what an encoder reads; 0: the target has none."""


@dataclass(frozen=True)
class PassSchedule:
    """The work of one pass."""

    reading: list[tuple[Sequence, int]]
    """Prompt chunks: a sequence and how many of its unread tokens to read."""
    decoding: list[tuple[Sequence, DraftBudget]]
    """Rounds: a sequence and what may be guessed for it."""
    listening: dict[int, list[Sequence]]
    """id of a sequence that reads a prompt -> those that wait for it; their drafters are shown its chunks, too."""

    @property
    def riding(self) -> list[Sequence]:
        """All that take part, those that read first."""
        return [sequence for sequence, _ in (*self.reading, *self.decoding)]

    @property
    def groups(self) -> list[BeamGroup]:
        """Of the beams that decode; they stand together."""
        found = [sequence.group for sequence, _ in self.decoding if sequence.group is not None]
        return list(dict.fromkeys(found))


def unread(sequence: Sequence, cache: PagedCache) -> int:
    """Tokens before the root that are not in the cache yet (after admission or preemption)."""
    return len(sequence.tokens) - 1 - cache.length(sequence.id)


def schedule_pass(
    sequences: Seq[Sequence],
    cache: PagedCache,
    limits: Limits,
    listening: dict[int, list[Sequence]],
    costs: PassCosts,
) -> PassSchedule | None:
    """Fill one pass; None if the cache has no room for even one row of every sequence that decodes.

    Budgets are fixed before anything is drawn, so that no draft is ever dropped for what it holds. ``costs``: of passes
    that read prompts.
    """
    decoding = [sequence for sequence in sequences if not unread(sequence, cache)]
    readers = [sequence for sequence in sequences if unread(sequence, cache)]
    units = _together(decoding)
    free = cache.free
    plain = [_room(unit, [_NONE] * len(unit), cache) for unit in units]
    for room in plain:
        if not free.holds(room):
            return None
        free -= room
    budgets: list[tuple[Sequence, DraftBudget]] = []
    # Guesses never take the row that keeps a reader going.
    guesses = min(limits.draft_rows, max(limits.max_rows - len(decoding) - bool(readers), 0))
    if cache.has_states:
        # One for each guess, and one for a reader's chunk.
        guesses = min(guesses, max(free.states - bool(readers), 0))
    share = max(guesses // max(len(decoding), 1), 1) if guesses else 0
    for unit, room in zip(units, plain, strict=True):
        own = [_budget(sequence, share, limits.max_context) for sequence in unit]
        if unit[0].group is not None:
            nodes = sum(budget.nodes for budget in own)
            own = [replace(budget, group_nodes=nodes) for budget in own]
        if any([budget.nodes for budget in own]):
            extra = _room(unit, own, cache) - room
            if free.holds(extra):
                free -= extra
            else:
                own = [_NONE] * len(unit)
        budgets += zip(unit, own, strict=True)
    decoded = sum(1 + budget.nodes for _, budget in budgets)
    rows = limits.max_rows - decoded
    if readers and decoding:
        context = sum(cache.length(sequence.id) for sequence in readers) / len(readers)
        rows = min(rows, chunk_rows(costs, decoded, limits.max_rows, context))
    rows = max(rows, bool(readers))
    reading = []
    for place, sequence in enumerate(readers):
        # An even share of what is left: no sequence waits for the end of another's long prompt.
        share = -(-rows // (len(readers) - place))
        count = _whole_blocks(sequence, cache, min(unread(sequence, cache), share))
        if count <= 0:
            continue
        needed = cache.needs(sequence.id, count, final=True)
        if not free.holds(needed):
            # The oldest reads first; what has no room waits for blocks.
            break
        free -= needed
        rows -= count
        reading.append((sequence, count))
    if reading:
        prompt_rows = sum(count for _, count in reading)
        budgets = [(sequence, replace(budget, prompt_rows=prompt_rows)) for sequence, budget in budgets]
    return PassSchedule(reading, budgets, listening) if reading or budgets else None


def _together(decoding: Seq[Sequence]) -> list[list[Sequence]]:
    """Each sequence by itself, but the beams of a group together."""
    units: dict[int, list[Sequence]] = {}
    for sequence in decoding:
        units.setdefault(id(sequence if sequence.group is None else sequence.group), []).append(sequence)
    return list(units.values())


def _room(unit: Seq[Sequence], budgets: Seq[DraftBudget], cache: PagedCache) -> Room:
    """What a round may take: for all rows, and for beams that are forked off others."""
    rows = [1 + max(budget.nodes, budget.group_nodes) for budget in budgets]
    blocks = sum([cache.blocks_needed(sequence.id, count) for sequence, count in zip(unit, rows, strict=True)])
    states = len(unit) + sum([budget.nodes for budget in budgets]) if cache.has_states else 0
    group = unit[0].group
    if group is not None:
        kept = 1 + max(budget.depth for budget in budgets)
        blocks += (group.width - 1) * cache.blocks_of_fork(unit[0].id, kept)
    return Room(blocks, states)


def _whole_blocks(sequence: Sequence, cache: PagedCache, count: int) -> int:
    """A chunk that does not end the prompt ends with a block, where it is long enough to: whole ones can be shared."""
    if count == unread(sequence, cache):
        return count
    over = (cache.length(sequence.id) + count) % cache.block_size
    return count - over if over < count else count


def _budget(sequence: Sequence, share: int, max_context: int) -> DraftBudget:
    """Near the end of the context or of the output the tree shrinks, then decoding is plain."""
    wishes = sequence.speculation
    if not wishes.enabled:
        return _NONE
    room = max_context - len(sequence.tokens)
    depth = min(room, sequence.stops.max_tokens - sequence.num_output) - 1
    if wishes.draft_tokens is not None:
        depth = min(depth, wishes.draft_tokens)
    nodes = min(share, room - 1) if wishes.tree_nodes is None else min(share, room - 1, wishes.tree_nodes)
    if depth <= 0 or nodes <= 0:
        return _NONE
    return DraftBudget(nodes, min(depth, nodes))
