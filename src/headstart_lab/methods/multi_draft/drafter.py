"""Several guesses at every node, in one prefix tree (Miao et al. 2024, SpecInfer; Chen et al. 2024, Sequoia)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.options import require
from headstart.drafting.second_models.chains import ChainDraft, draft_chains
from headstart.drafting.second_models.draft_law import DraftLaw, DraftLaws
from headstart.drafting.second_models.model_source import (
    DraftModelOptions,
    load_draft_model,
    open_second_model,
    second_model,
)
from headstart.drafting.second_models.second_model import SecondModel
from headstart.models.checkpoint import open_checkpoint
from headstart.passes.draft_tree import ROOT, DraftTree, Draws, TreeLaw
from headstart_lab.methods.multi_draft.growing_trees import (
    BeamTree,
    CoupledTree,
    DistinctTree,
    GrowingTree,
    SampledTree,
    fit_branching,
)

MAX_DRAWS = 64


@dataclass(frozen=True)
class MultiDraftOptions(DraftModelOptions):
    models: tuple[str, ...] = ()
    """Several draft models, one chain of each; instead of ``model`` and ``branching``."""
    branching: tuple[int, ...] = (3, 2, 1, 1)
    """Draws below each draw, level by level; (K, 1, 1) are K chains. A smaller budget makes the tree narrower."""
    replacement: bool = True
    """False: the draws below a node are all different (Sequoia), which the target accepts more often."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in (("models", str), ("branching", int)):
            value = getattr(self, name)
            require(
                isinstance(value, (tuple, list)) and all(isinstance(item, kind) for item in value),
                f"{name} is {value!r:.60}; it must be a list of {'names' if kind is str else 'integers'}.",
            )
            object.__setattr__(self, name, tuple(value))
        require(
            len(self.branching) > 0 and min(self.branching) >= 1,
            f"branching is {self.branching!r:.60}; it needs at least one level, and 1 or more draws on each.",
        )
        require(
            max(len(self.branching), *self.branching) <= MAX_DRAWS,
            f"branching is {self.branching!r:.60}; at most {MAX_DRAWS} levels and {MAX_DRAWS} draws below one fit into "
            "a tree.",
        )
        require(
            not self.models or (self.model is None and self.layers is None),
            f"models is {self.models}, but model or layers is given too; give one of them.",
        )
        require(
            not self.models or self.replacement,
            "replacement is False, but draws of several models are made apart; leave out models.",
        )

    @property
    def names_model(self) -> bool:
        return bool(self.models) or super().names_model

    def check_files(self) -> None:
        super().check_files()
        for model in self.models:
            open_checkpoint(model)


class MultiDraftDrafter:
    """A tree of draws from one model, or one chain of each of several models.

    Greedy requests get the likeliest paths, coupled ones what the target's noise picks, both as point masses.
    """

    Options = MultiDraftOptions
    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: MultiDraftOptions) -> None:
        self._options = options
        self._laws = DraftLaws(context, options)
        if options.models:
            backends = [load_draft_model(context, name) for name in options.models]
            self._models = [second_model(context, backend, options.cache_tokens) for backend in backends]
        else:
            self._models = [open_second_model(context, options)]

    @property
    def nbytes(self) -> int:
        return sum(model.nbytes for model in self._models)

    def begin(self, sequence: SequenceView) -> None:
        pass

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        for model in self._models:
            model.fork(source.id, sequence.id)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._options.models:
            return self._chains(sequences, budgets)
        trees = [self._sprout(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]
        grow_trees(self._models[0], trees)
        return [tree.tree() for tree in trees]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            for model in self._models:
                model.roll_back(outcome.sequence)

    def rewind(self, sequence: SequenceView) -> None:
        """The sequence's last tokens were taken back."""
        self._laws.rewind(sequence)
        for model in self._models:
            model.roll_back(sequence)

    def end(self, sequence_id: int) -> None:
        self._laws.forget(sequence_id)
        for model in self._models:
            model.forget(sequence_id)

    def _sprout(self, sequence: SequenceView, budget: DraftBudget) -> GrowingTree:
        law = self._laws.of(sequence)
        depth = min(self._options.draft_tokens, budget.depth)
        return self._kind(law)(sequence, law, fit_branching(self._options.branching, budget.nodes, depth))

    def _kind(self, law: DraftLaw) -> type[GrowingTree]:
        if law.transforms.greedy:
            return BeamTree
        if law.coupled:
            return CoupledTree
        return SampledTree if self._options.replacement else DistinctTree

    def _chains(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """One chain of each model; a budget too small for all of them is for the first ones."""
        drafts: list[list[ChainDraft]] = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            used = min(len(self._models), budget.nodes)
            length = min(self._options.draft_tokens, budget.depth, budget.nodes // max(used, 1))
            law = self._laws.of(sequence)
            drafts.append([ChainDraft(sequence, law, length, first_draw=k * length) for k in range(used)])
        for k, model in enumerate(self._models):
            draft_chains(model, [chains[k] for chains in drafts if k < len(chains)])
        return [_merge(chains) for chains in drafts]


def grow_trees(model: SecondModel, trees: Sequence[GrowingTree]) -> None:
    """Grow all trees together: one pass a level.

    A pass reads the levels above again: the cache keeps only what is sure to be committed, and up to a machine's knee
    more rows cost next to nothing.
    """
    growing = {tree.sequence.id: tree for tree in trees if not tree.finished}
    caught_up = model.catch_up([tree.sequence for tree in growing.values()]) if growing else {}
    logits = {sequence_id: row[None] for sequence_id, row in caught_up.items()}
    while logits:
        for sequence_id, rows in logits.items():
            growing[sequence_id].grow(rows)
        spans = model.fitting([tree.span() for i in logits if not (tree := growing[i]).finished])
        with model.passing(spans) as outputs:
            logits = {
                span.sequence_id: model.fit(output.logits[-len(growing[span.sequence_id].frontier) :])
                for span, output in zip(spans, outputs, strict=True)
            }


def _merge(chains: Sequence[ChainDraft]) -> DraftTree:
    """Drafts of one sequence in one prefix tree: nodes are merged, draws stay (Miao et al. 2024, SpecInfer).

    At every node the draws come in the order of the chains, whatever was drawn.
    """
    if not any(chain.rows for chain in chains):
        paths = [chain.tokens for chain in chains]
        return DraftTree.from_paths(paths, sum(map(len, paths)))
    tokens: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    draws: list[tuple[int, int]] = []
    for chain in chains:
        node = ROOT
        for token in chain.tokens:
            child = children.setdefault((node, token), len(tokens))
            if child == len(tokens):
                tokens.append(token)
                parents.append(node)
            draws.append((node, child))
            node = child
    drawn_from, landed_on = np.asarray(draws, dtype=np.int32).T
    return DraftTree(
        np.asarray(tokens, dtype=np.int32),
        np.asarray(parents, dtype=np.int32),
        TreeLaw.SAMPLED,
        Draws(drawn_from, landed_on, np.arange(len(draws), dtype=np.int32)),
        torch.stack([row for chain in chains for row in chain.rows]),
    )
