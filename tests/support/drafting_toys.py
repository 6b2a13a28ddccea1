"""What drafters are tested with: sequences, a toy target, and the engine's part of a round."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from devices import DEVICES

from headstart.drafting.base import (
    DraftBudget,
    Drafter,
    RoundOutcome,
    SequenceView,
    SpeculationParams,
    TargetSignals,
)
from headstart.passes.batch import EncoderInput
from headstart.passes.draft_tree import ROOT, DraftTree, TreeLaw
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart_lab.audit.oracle import Propose

CONTRACT_VOCAB = 12
"""Tokens of the contract suite's target."""

Ranking = Callable[[Sequence[int]], np.ndarray]
"""A target: context -> all token ids, the likeliest first."""


@dataclass
class ToySequence:
    id: int
    tokens: list[int]
    prompt_length: int = 0
    params: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    noise: SequenceNoise = field(default_factory=lambda: SequenceNoise(7))
    source: EncoderInput | None = None

    def __post_init__(self) -> None:
        self.prompt_length = self.prompt_length or len(self.tokens)


def second_order_target(vocab_size: int, seed: int = 0) -> Ranking:
    """A target whose next token follows from the last two, so that its text soon repeats itself."""

    @cache
    def ranking_after(seen: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng([seed, *seen]).permutation(vocab_size)

    return lambda context: ranking_after(tuple(context[-2:]))


class Proposing:
    """A drafter that proposes what a toy of the oracle does."""

    needs = TargetSignals()

    def __init__(self, propose: Propose) -> None:
        self._propose = propose

    def begin(self, sequence: SequenceView) -> None: ...

    def end(self, sequence_id: int) -> None: ...

    def observe(self, outcomes: list[RoundOutcome]) -> None: ...

    def propose(self, sequences: list[SequenceView], budgets: list[DraftBudget]) -> list[DraftTree]:
        return [
            self._propose(s.noise, len(s.tokens) - 1, tuple(s.tokens[s.prompt_length :]))
            if budget.nodes
            else DraftTree.empty()
            for s, budget in zip(sequences, budgets, strict=True)
        ]


class Law(list[Any]):
    """Probabilities: equal if all of their bits are. Where heads run on an accelerator, nearly: it rounds by how many
    rows are computed together."""

    def __eq__(self, other: object) -> bool:
        if len(DEVICES) == 1:
            return super().__eq__(other)
        return isinstance(other, Law) and np.shape(self) == np.shape(other) and np.allclose(self, other, atol=1e-5)

    __hash__ = None  # type: ignore[assignment]


def shape(tree: DraftTree) -> tuple[Any, ...]:
    """A tree as plain values, for comparison."""
    draws = None
    if tree.draws is not None:
        draws = [array.tolist() for array in (tree.draws.parents, tree.draws.nodes, tree.draws.rows)]
    probs = None if tree.draft_probs is None else Law(tree.draft_probs.tolist())
    return tree.tokens.tolist(), tree.parents.tolist(), tree.law, draws, probs


def check_tree(tree: DraftTree, budget: DraftBudget, vocab_size: int) -> None:
    """Everything that verification relies on."""
    assert tree.tokens.dtype == tree.parents.dtype == np.int32
    assert len(tree) <= budget.nodes
    assert max(tree.depths.tolist(), default=0) <= budget.depth
    assert all(0 <= token < vocab_size for token in tree.tokens.tolist())
    assert all(ROOT <= parent < node for node, parent in enumerate(tree.parents.tolist()))
    other_inputs = set() if tree.inputs is None else set(tree.inputs.rows.tolist())
    reads = [None if node in other_inputs else token for node, token in enumerate(tree.tokens.tolist())]
    siblings = list(zip(tree.parents.tolist(), reads, strict=True))
    assert len(siblings) == len(set(siblings)), "equal siblings must be merged"
    if tree.law is TreeLaw.POINT_MASS:
        assert tree.draws is None
        assert tree.draft_probs is None
        return
    draws, probs = tree.draws, tree.draft_probs
    assert draws is not None
    assert probs is not None
    assert probs.dtype == torch.float64
    assert probs.shape[1] == vocab_size
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(1), torch.ones(len(probs), dtype=torch.float64), rtol=0, atol=1e-12)
    drawn = list(zip(draws.parents.tolist(), draws.nodes.tolist(), draws.rows.tolist(), strict=True))
    for parent, node, row in drawn:
        assert tree.parents[node] == parent
        assert probs[row, int(tree.tokens[node])] > 0
    if tree.law is TreeLaw.WITHOUT_REPLACEMENT:
        landed = [(node, row) for _, node, row in drawn]
        assert len(landed) == len(set(landed))


def read_prompt(sequence: ToySequence) -> RoundOutcome:
    """The outcome of the pass that read a sequence's tokens but the root."""
    chunk = np.asarray(sequence.tokens[:-1], dtype=np.int32)
    return RoundOutcome(sequence, 0, chunk, DraftTree.empty())


def verify_greedily(sequence: ToySequence, tree: DraftTree, target: Ranking, top_ids: int) -> RoundOutcome:
    """Walk the tree along the target's favourites and commit what was walked, and one token more."""
    root = len(sequence.tokens) - 1
    contexts = [list(sequence.tokens)]
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        contexts.append([*contexts[parent + 1], token])
    node, accepted, committed = ROOT, [], []
    while True:
        token = int(target(contexts[node + 1])[0])
        committed.append(token)
        child = tree.child_with(node, token)
        if child is None:
            break
        accepted.append(child)
        node = child
    best = np.stack([target(context)[:top_ids] for context in contexts]) if top_ids else None
    rows = np.asarray([sequence.tokens[-1], *tree.tokens.tolist()], dtype=np.int32)
    sequence.tokens.extend(committed)
    return RoundOutcome(sequence, root, rows, tree, tuple(accepted), tuple(committed), best)


def play(
    drafter: Drafter,
    sequences: Sequence[ToySequence],
    target: Ranking,
    rounds: int,
    budget: DraftBudget,
    vocab_size: int,
    proposals: int = 1,
) -> list[list[DraftTree]]:
    """The engine's part of some rounds with sequences that were begun: [round][sequence] trees, each checked."""
    history = []
    for _ in range(rounds):
        for _ in range(proposals):
            trees = drafter.propose(sequences, [budget] * len(sequences))
        assert len(trees) == len(sequences)
        for tree in trees:
            check_tree(tree, budget, vocab_size)
        drafter.observe(
            [
                verify_greedily(sequence, tree, target, drafter.needs.top_ids)
                for sequence, tree in zip(sequences, trees, strict=True)
            ]
        )
        history.append(trees)
    return history


def accepted_share(drafter: Drafter, sequence: ToySequence, target: Ranking, rounds: int, budget: DraftBudget) -> float:
    """Mean number of accepted nodes a round."""
    before = len(sequence.tokens)
    play(drafter, [sequence], target, rounds, budget, vocab_size=10**9)
    return (len(sequence.tokens) - before) / rounds - 1


def footprint(owner: object) -> int:
    """Items in all containers and arrays that an object holds on to."""
    seen: set[int] = set()
    waiting, items = [owner], 0
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen or isinstance(thing, (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)):
            continue
        seen.add(id(thing))
        if isinstance(thing, (dict, list, set, tuple, np.ndarray)):
            items += len(thing)
        waiting.extend(gc.get_referents(thing))
    return items
