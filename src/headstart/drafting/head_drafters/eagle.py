"""EAGLE (Li et al. 2024, arXiv:2401.15077), EAGLE-2 (arXiv:2406.16858) and EAGLE-3 (arXiv:2503.01840).

The head's row i reads what the target saw at position i and the token after it. Rows of committed tokens are made
from the target's true states, which every pass brings; a draft goes on from the head's own. The rows of a draft are
forgotten after it, so drafting always continues from what the target saw.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from headstart.cache.paged import PagedCache
from headstart.draft_tree import DraftTree
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals, beam_of
from headstart.drafting.beam_trees import chosen_nodes, kept_mask, wide_budgets
from headstart.drafting.context import DraftContext
from headstart.drafting.head_drafters.head_source import ConfidenceOptions, HeadOptions, open_head
from headstart.drafting.head_drafters.head_trees import (
    CONFIDENCE_RATES,
    LOG_CONFIDENCE,
    HeadTrees,
    Ids,
    Scores,
    TemplateTrees,
    confidence_grades,
    path_bounds,
)
from headstart.drafting.head_drafters.noise_ranking import NoiseRanking
from headstart.drafting.head_drafters.read_prefixes import ReadPrefixes
from headstart.drafting.head_drafters.reading import Features, Reading
from headstart.drafting.options import require
from headstart.drafting.tree_templates import rank_tree
from headstart.heads.eagle import EagleConfig, EagleHead
from headstart.heads.head_pass import DraftRoot, DraftRows, HeadGrower, HeadPass
from headstart.heads.text_vocabulary import text_vocabulary
from headstart.passes import IntArray
from headstart.stretch import Guesser, StretchDrafting, StretchLimits

_EAGER_ROWS = 64
"""This many unread rows of a sequence are read as they come, which bounds the memory of long prompts; fewer wait until
a draft needs them."""
_ROWS_PER_PASS = 512

STATIC_LEVELS = (4, 8, 7, 4, 2)
"""Nodes on each level of EAGLE-1's static tree of 25."""
RANK_PROBABILITIES = (0.55, 0.14, 0.07, 0.04)
"""How often the next token is the head's first, second, ... guess; only their order of products matters."""


@dataclass(frozen=True)
class EagleOptions(HeadOptions):
    pass


@dataclass(frozen=True)
class DynamicEagleOptions(ConfidenceOptions):
    draft_tokens: int = 8
    """Depth of a draft at most: where the head is sure, levels cost little, and unsure paths end by themselves."""
    text_vocabulary: int = 512
    """Tokens of the text that its vocabulary lacks and that it may say all the same, at most; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.text_vocabulary >= 0, f"text_vocabulary is {self.text_vocabulary}; it must be 0 or more.")


def _prefixes_beside(cache: PagedCache, head: HeadPass, config: EagleConfig) -> ReadPrefixes:
    """As many blocks as the target's cache has, where it finds prefixes again."""
    features = np.dtype(np.float32).itemsize * len(config.taps) * config.target_hidden_size
    max_blocks = 0 if cache.prefixes is None else cache.allocator.num_blocks
    return ReadPrefixes(head.new_cache, cache.block_size, max_blocks, cache.block_size * head.row_bytes + features)


class HeadDrafter(ABC):
    """Reads along with the target, and grows trees; sub-classes choose their shape."""

    variant: str

    def __init__(self, context: DraftContext, options: HeadOptions, most_text_tokens: int = 0) -> None:
        head = open_head(context, options.model, self.variant, EagleHead)
        tables = context.require_tables()()
        self._options = options
        self._taps = head.config.taps
        self._kit = context.require_runner().backend.kit
        self._pass = self._kit.head_pass(head, tables, options.precision)
        self._target_ids = self._pass.target_ids.numpy()
        self._most_text_tokens = most_text_tokens
        self._vocabulary = text_vocabulary(head, tables, context.vocab_size) if most_text_tokens else None
        self._eps = None if head.config.norm_output else head.config.norm_eps
        self._vocab_size = context.vocab_size
        self._readings: dict[int, Reading] = {}
        self._scope_of = context.scope_of
        self._prefixes = _prefixes_beside(context.require_runner().cache, self._pass, head.config)
        self.needs = TargetSignals(taps=self._taps)

    @abstractmethod
    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        """Empty trees, one for each budget."""

    @property
    @abstractmethod
    def ranks(self) -> int:
        """Children of a node at most."""

    @property
    def nbytes(self) -> int:
        """Of the head, and of what it may keep of prefixes."""
        vocabulary = 0 if self._vocabulary is None else self._vocabulary.nbytes
        return self._pass.nbytes + vocabulary + self._prefixes.max_bytes

    def begin(self, sequence: SequenceView) -> None:
        self.end(sequence.id)
        vocabulary = self._vocabulary
        text_tokens = None if vocabulary is None else self._pass.text_tokens(vocabulary, self._most_text_tokens)
        self._readings[sequence.id] = Reading(self._pass.new_cache(), text_tokens)

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        self.begin(sequence)
        known = self._readings.get(source.id)
        if known is not None:
            self._readings[sequence.id].copy_of(known)

    def end(self, sequence_id: int) -> None:
        reading = self._readings.pop(sequence_id, None)
        if reading is not None:
            reading.cache.release()

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        many = []
        for outcome in outcomes:
            reading = self._readings.get(outcome.sequence.id)
            if reading is None:
                continue
            self._resume(outcome.sequence, reading, outcome.first_position)
            before = reading.end
            reading.append(outcome.first_position, outcome.hidden.at(self._taps), outcome.kept_rows)
            if reading.num_unread >= _EAGER_ROWS or self._prefixes.wants(reading, before):
                many.append((outcome.sequence, reading))
        self._keep(many)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        trees = [DraftTree.empty()] * len(sequences)
        active = [
            i
            for i, (sequence, budget) in enumerate(zip(sequences, budgets, strict=True))
            if min(budget.nodes, budget.depth) > 0 and self._is_ready(sequence)
        ]
        if active:
            drafted = [(sequences[i], self._readings[sequences[i].id]) for i in active]
            self._prepare(drafted)
            grown = self._grow(drafted, [budgets[i] for i in active])
            for i, tree in zip(active, grown, strict=True):
                trees[i] = tree
        return trees

    @staticmethod
    def _prepare(drafted: Sequence[tuple[SequenceView, Reading]]) -> None:
        """Before these are drafted for."""
        for sequence, reading in drafted:
            reading.rewind()
            if reading.text_tokens is not None:
                reading.text_tokens.read(sequence.tokens)

    def _keep(self, drafted: Sequence[tuple[SequenceView, Reading]]) -> None:
        """Read what is known, and keep the prefixes that were filled."""
        self._read_on(list(drafted))
        for sequence, reading in drafted:
            self._prefixes.keep(self._scope_of(sequence), sequence.tokens, reading)
            reading.forget_read()

    def _is_ready(self, sequence: SequenceView) -> bool:
        reading, position = self._readings.get(sequence.id), len(sequence.tokens) - 1
        if reading is None:
            return False
        self._resume(sequence, reading, position)
        return reading.known > 0 and reading.end == position

    def _resume(self, sequence: SequenceView, reading: Reading, position: int) -> None:
        """Where states are missing before ``position``: take what was read there for others, if it is kept."""
        if reading.end != position:
            self._prefixes.resume(self._scope_of(sequence), sequence.tokens[:position], reading)

    def _read_on(self, waiting: list[tuple[SequenceView, Reading]]) -> None:
        """Turn known states into rows, but the last of each sequence. The token after a state is known by then, also
        after a prompt chunk."""
        waiting = [(sequence, reading) for sequence, reading in waiting if reading.num_unread > 1]
        while waiting:
            room = _ROWS_PER_PASS
            rows, parts = [], []
            for sequence, reading in waiting:
                count = min(reading.num_unread - 1, room)
                if not count:
                    break
                room -= count
                rows.append(reading.unread(sequence, count))
                parts.append(DraftRows(reading.cache, count))
            self._read(rows, parts)
            waiting = [(sequence, reading) for sequence, reading in waiting if reading.num_unread > 1]

    def _read(self, rows: Sequence[tuple[IntArray, Features]], groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        tokens, features = (np.concatenate(column) for column in zip(*rows, strict=True))
        return self._pass.read(tokens, torch.from_numpy(features), groups)

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """What was not read yet, then one step a level, over the beams of all sequences."""
        count = len(drafted)
        caches = [reading.cache for _, reading in drafted]
        states, logits = self._read(
            [reading.unread(sequence) for sequence, reading in drafted],
            [DraftRows(reading.cache, reading.num_unread) for _, reading in drafted],
        )
        true_rows = [cache.rows for cache in caches]
        further = self._further_ids(drafted)
        ranking = self._noise_ranking(drafted, further)
        trees = self.new_trees(budgets)
        depth = min(self._options.draft_tokens, max(budget.depth for budget in budgets))
        paths = np.zeros((count, 1, 0), dtype=np.int32)
        for level in range(1, depth + 1):
            logits = self._with_text_tokens(states, logits, drafted, further.shape[1])
            beams = trees.grow(*self._best(ranking.scores(logits, level), further))
            if level == depth or beams is None:
                break
            width, before = beams.tokens.shape[1], len(states) // count
            # A beam reads the state of the row that guessed it, and sees what that row saw, that row, and itself.
            rows = beams.parents + before * np.arange(count)[:, None]
            held = caches[0].rows - true_rows[0]
            own = np.broadcast_to(np.arange(held, held + width, dtype=np.int32)[:, None], (count, width, 1))
            paths = np.concatenate((np.take_along_axis(paths, beams.parents[:, :, None], axis=1), own), axis=2)
            states, logits = self._pass.step(
                beams.tokens.ravel().astype(np.int32),
                states[torch.from_numpy(rows.ravel()).to(states.device)],
                [DraftRows(cache, width, paths[i]) for i, cache in enumerate(caches)],
            )
        for cache, count_true in zip(caches, true_rows, strict=True):
            cache.truncate(count_true)
        return trees.trees(self._options.tree_nodes, budgets)

    def _with_text_tokens(
        self, states: Tensor, logits: Tensor, drafted: Sequence[tuple[SequenceView, Reading]], further: int
    ) -> Tensor:
        """Logits [sequence, beam, column] of the draft vocabulary, and ``further`` columns for tokens of the texts.

        Args:
            states: [row, hidden] that are fed back, as many rows for each sequence.
            logits: [row, draft vocab] after them.
        """
        logits = logits.view(len(drafted), -1, logits.shape[-1])
        if not further:
            return logits
        columns = logits.new_full((*logits.shape[:2], further), -torch.inf)
        for own, rows, (_, reading) in zip(columns, states.chunk(len(drafted)), drafted, strict=True):
            if reading.text_tokens is not None:
                own[:, : len(reading.text_tokens)] = reading.text_tokens.logits(rows, self._eps)
        return torch.cat((logits, columns), dim=-1)

    @staticmethod
    def _further_ids(drafted: Sequence[tuple[SequenceView, Reading]]) -> Ids:
        """[sequence, column] target ids of the text tokens, 0 where a sequence has fewer than another."""
        own = [
            np.empty(0, np.int32) if reading.text_tokens is None else reading.text_tokens.tokens
            for _, reading in drafted
        ]
        ids = np.zeros((len(drafted), max(map(len, own))), np.int64)
        for row, tokens in zip(ids, own, strict=True):
            row[: len(tokens)] = tokens
        return ids

    def _noise_ranking(self, drafted: Sequence[tuple[SequenceView, Reading]], further: Ids) -> NoiseRanking:
        sequences = [sequence for sequence, _ in drafted]
        return NoiseRanking(sequences, self._pass.target_ids, self._vocab_size, torch.from_numpy(further))

    def _best(self, scores: Tensor, further: Ids) -> tuple[Scores, Ids]:
        """Log-probabilities and target ids of each row's best tokens [sequence, beam, rank].

        Args:
            scores: [sequence, beam, column].
            further: ids of the columns behind the draft vocabulary.
        """
        shape = (*scores.shape[:2], min(self.ranks, scores.shape[2]))
        log_probs, ids = self._pass.best(scores.flatten(0, 1), shape[2])
        tokens = self._target_ids[np.minimum(ids, len(self._target_ids) - 1)].reshape(shape)
        behind = ids.reshape(shape) - len(self._target_ids)
        if further.size:
            own = np.take_along_axis(further[:, None], np.maximum(behind, 0), axis=2)
            tokens = np.where(behind < 0, tokens, own)
        # A head may be wider than the target by padding rows.
        log_probs = log_probs.reshape(shape)
        log_probs[tokens >= self._vocab_size] = -np.inf
        return log_probs, np.minimum(tokens, self._vocab_size - 1)


class EagleDrafter(HeadDrafter):
    """EAGLE-1: the head's first guesses in a static tree."""

    Options = EagleOptions
    variant = "eagle"
    ranks = len(RANK_PROBABILITIES)

    def __init__(self, context: DraftContext, options: EagleOptions) -> None:
        super().__init__(context, options)
        self._template = rank_tree(STATIC_LEVELS, RANK_PROBABILITIES)

    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        return TemplateTrees(len(budgets), self._template)


class Eagle2Drafter(HeadDrafter):
    """EAGLE-2: EAGLE-1's head in a tree that grows where the head is confident."""

    Options = DynamicEagleOptions
    variant = "eagle"
    grade_rates = CONFIDENCE_RATES
    _options: DynamicEagleOptions

    def __init__(self, context: DraftContext, options: DynamicEagleOptions) -> None:
        super().__init__(context, options, options.text_vocabulary)
        ids = np.where(self._target_ids < self._vocab_size, self._target_ids, -1)
        self._growth = self._pass.growth(options.width, ids)

    @property
    def ranks(self) -> int:
        return self._options.width

    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        return self._options.new_trees(budgets, self._kit)

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._growth is None:
            return super()._grow(drafted, budgets)
        sequences, allowed = [sequence for sequence, _ in drafted], budgets
        budgets = wide_budgets(sequences, budgets)
        roots = self._roots(drafted, budgets)
        ranking = self._noise_ranking(drafted, self._further_ids(drafted))
        bounds = path_bounds(self._options.min_probability_of(budgets, self._kit))
        grown = self._growth.grow(roots, bounds, ranking.of if ranking.sampled else None)
        trees = [
            DraftTree(tree.tokens, tree.parents, grades=confidence_grades(tree.parents, tree.scores)) for tree in grown
        ]
        parents, scores = [tree.parents.tolist() for tree in grown], [tree.scores.tolist() for tree in grown]
        tokens = [tree.token_list for tree in trees]
        for place, kept in chosen_nodes(sequences, allowed, tokens, parents, scores).items():
            trees[place] = trees[place].restricted_to(kept_mask(kept, len(trees[place])))
        return trees

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        if self._growth is None or not all([self._is_ready(sequence) for sequence in sequences]):
            return None
        drafted = [(sequence, self._readings[sequence.id]) for sequence in sequences]
        self._prepare(drafted)
        budgets = [each.budget for each in limits]
        growers = self._growth.growers(
            self._roots(drafted, budgets),
            path_bounds(self._options.min_probability_of(budgets, self._kit)),
            LOG_CONFIDENCE,
            [each.rows for each in limits],
            [each.guesses for each in limits],
        )
        return StretchDrafting(
            [
                (Guesser(grower, partial(self._finish, sequence, reading, grower), self._taps),)
                for (sequence, reading), grower in zip(drafted, growers, strict=True)
            ]
        )

    def _roots(
        self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]
    ) -> list[DraftRoot]:
        """Where drafts begin, and how far they may grow."""
        options = self._options
        return [
            DraftRoot(
                reading.cache,
                *reading.unread(sequence),
                budget.nodes if beam_of(sequence) is not None else min(options.tree_nodes, budget.nodes),
                min(options.draft_tokens, budget.depth),
                reading.text_tokens,
            )
            for (sequence, reading), budget in zip(drafted, budgets, strict=True)
        ]

    def _finish(self, sequence: SequenceView, reading: Reading, grower: HeadGrower) -> None:
        """A stretch is over, which may have gone further than the sequence."""
        before = reading.end
        reading.go_on(len(sequence.tokens) - 1, grower)
        if reading.num_unread >= _EAGER_ROWS or self._prefixes.wants(reading, before):
            self._keep([(sequence, reading)])


class Eagle3Drafter(Eagle2Drafter):
    """EAGLE-3: features of several layers, a vocabulary of its own, EAGLE-2's tree."""

    variant = "eagle3"
