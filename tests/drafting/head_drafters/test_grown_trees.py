"""Drafts grown in one native call are, tree for tree, those that grow step by step, or of one pass in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from head_toys import head_target, shake

from headstart.backends.native.growth import NativeGrowth
from headstart.backends.native.heads import NativeEaglePass
from headstart.backends.native.loader import load_library
from headstart.draft_tree import ROOT, DraftTree
from headstart.drafting.base import DraftBudget, RoundOutcome
from headstart.drafting.context import DraftContext
from headstart.drafting.head_drafters.growing import GrowingDrafter
from headstart.drafting.registry import create_drafter
from headstart.heads.block import BlockHead, block_config
from headstart.heads.eagle import EagleHead, eagle_config
from headstart.heads.head_pass import DraftRoot, GrownTree
from headstart.heads.saving import save_head
from headstart.heads.tables import TargetTables
from headstart.models.config import RopeConfig
from headstart.passes import TapStates
from headstart.runner import ModelRunner
from headstart.sampling.params import SamplingParams
from mapped_heads import map_rows, output_rows
from toys import ToyBackend, hashed_logits

pytestmark = pytest.mark.skipif(load_library() is None, reason="no native path on this machine")

VOCAB, DRAFT_VOCAB, HIDDEN, ROUNDS, SLOTS = 77, 45, 96, 4, 6
BLOCKS: Mapping[str, Mapping[str, object]] = {
    "dflash": {},
    "jetspec": {"causal": True, "confidence": True, "own_output": True},
    "dspark": {"root_speaks": True, "markov_rank": 5, "confidence": True, "confidence_reads_token": True},
    "a factor without a confidence": {"markov_rank": 70, "attention_bias": True},
}
VARIANTS = ("eagle3", "eagle2", "p-eagle", *BLOCKS)
SPEAKING = [variant for variant in VARIANTS if variant != "eagle2"]
TARGET = replace(head_target(VOCAB), hidden_size=HIDDEN, head_dim=32, ropes=(RopeConfig(1000.0, 32),))
GREEDY = SamplingParams(temperature=0)
CASES: Mapping[str, Mapping[str, object]] = {
    "defaults": {},
    "all nodes": {"min_probability": 0.0},
    "narrow and deep": {"min_probability": 0.001, "width": 1, "draft_tokens": 8},
    "odd": {"min_probability": 0.002, "width": 3, "draft_tokens": 7, "tree_nodes": 11},
    "one level": {"min_probability": 0.0, "draft_tokens": 1, "tree_nodes": 2},
    "fewer nodes than a level": {"min_probability": 0.0, "width": 5, "tree_nodes": 3},
    "wider than the vocabulary": {"min_probability": 0.0, "width": 50, "draft_tokens": 2, "tree_nodes": 64},
}


def random_head(variant: str, num_layers: int = 1) -> EagleHead | BlockHead:
    """EAGLE-3's cannot say every token, and says some in another order; P-EAGLE's is such a head, as are blocks'."""
    if variant in BLOCKS:
        block = BlockHead(replace(block_config(TARGET, SLOTS, num_layers, 6, DRAFT_VOCAB), **BLOCKS[variant]))  # type: ignore[arg-type]
        shake(block, 3, 0.15)
        with torch.no_grad():
            if block.config.markov_rank:
                block.markov_head.markov_w2.weight.mul_(40 / block.config.markov_rank)
            if block.config.confidence:
                block.confidence_head.proj.weight.mul_(0.6)
                block.confidence_head.proj.bias.fill_(-3 if block.config.markov_rank else -1.5)
        block.d2t.copy_(draft_ids() - torch.arange(DRAFT_VOCAB))
        if block.config.own_output:
            block.lm_head.weight.data.copy_(tables().head[draft_ids()])
        return block
    reduced = None if variant == "eagle" else DRAFT_VOCAB
    fused = "eagle" if variant == "eagle" else "eagle3"
    masks = {"slots": SLOTS, "mask_token_id": 6} if variant == "p-eagle" else {}
    head = EagleHead(eagle_config(TARGET, fused, reduced, num_layers, **masks))  # type: ignore[arg-type]
    shake(head, 3, 0.15)
    if head.config.reduced:
        head.d2t.copy_(draft_ids() - torch.arange(DRAFT_VOCAB))
        map_rows(head, tables().head, 0.15)
    return head


def draft_ids() -> torch.Tensor:
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(4))[:DRAFT_VOCAB]


def tables() -> TargetTables:
    generator = torch.Generator().manual_seed(2)
    embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
    return TargetTables(embedding, output_rows(VOCAB, HIDDEN, generator) * 0.3)


def drafters(
    directory: Path, variant: str, options: Mapping[str, object], vocab: int = VOCAB, num_layers: int = 1
) -> list[GrowingDrafter]:
    """One that grows trees natively, and the same that grows them step by step."""
    save_head(random_head("eagle" if variant == "eagle2" else variant, num_layers), directory)
    backend = ToyBackend(VOCAB, hashed_logits(VOCAB))
    backend.config = TARGET
    context = DraftContext(
        vocab_size=vocab,
        runner=ModelRunner(backend, cache_tokens=64, block_size=8),
        lend_tables=tables,
    )
    name = "dflash" if variant in BLOCKS else variant
    both = [create_drafter(name, context, model=str(directory), **options) for _ in range(2)]
    assert all(isinstance(drafter, GrowingDrafter) for drafter in both)
    assert isinstance(both[0]._growth, NativeGrowth)
    both[1]._growth = None
    return both


def states(rows: int, drafter: GrowingDrafter, seed: Sequence[int]) -> TapStates:
    rng = np.random.default_rng([*seed])
    return TapStates.of({tap: torch.from_numpy(rng.normal(size=(rows, HIDDEN))).float() for tap in drafter.needs.taps})


def rounds(
    drafter: GrowingDrafter, params: Sequence[SamplingParams], budgets: Sequence[DraftBudget]
) -> list[DraftTree]:
    """Every tree of a few rounds of several sequences, in which a path made up beforehand is accepted."""
    sequences = []
    for place, own in enumerate(params):
        length = (70, 3, 33)[place % 3]
        tokens = np.random.default_rng(place).integers(0, VOCAB, length).tolist()
        sequences.append(sequence := ToySequence(place, tokens, params=own))
        drafter.begin(sequence)
        chunk = np.array(tokens[:-1], np.int32)
        hidden = states(length - 1, drafter, [place])
        drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty(), hidden=hidden)])
    found = []
    for turn in range(ROUNDS):
        trees = drafter.propose(sequences, budgets)
        outcomes = []
        for sequence, tree in zip(sequences, trees, strict=True):
            path = tree.path_to(len(tree) // (turn + 1) - 1) if len(tree) >= turn + 1 else []
            root = len(sequence.tokens) - 1
            rows = np.array([sequence.tokens[-1], *tree.tokens], np.int32)
            committed = (*tree.tokens[path].tolist(), turn)
            sequence.tokens.extend(committed)
            hidden = states(len(rows), drafter, [sequence.id, turn])
            outcomes.append(RoundOutcome(sequence, root, rows, tree, tuple(path), committed, hidden=hidden))
        drafter.observe(outcomes)
        found += trees
    return found


def assert_alike(
    both: Sequence[GrowingDrafter], params: Sequence[SamplingParams], budgets: Sequence[DraftBudget]
) -> int:
    """The nodes that were compared."""
    grown, stepped = (rounds(drafter, params, budgets) for drafter in both)
    for tree, wanted in zip(grown, stepped, strict=True):
        for part in ("tokens", "parents", "grades"):
            np.testing.assert_array_equal(getattr(tree, part), getattr(wanted, part))
    assert [r.cache.rows for r in both[0]._readings.values()] == [r.cache.rows for r in both[1]._readings.values()]
    return sum(map(len, grown))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_grown_trees_are_those_of_steps(name: str, variant: str, tmp_path: Path) -> None:
    both = drafters(tmp_path, variant, CASES[name])
    nodes = assert_alike(both, [GREEDY] * 3, [DraftBudget(31, 9), DraftBudget(4, 2), DraftBudget(9, 5)])
    assert nodes > 0 or name == "defaults"


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_heads_of_several_layers(variant: str, tmp_path: Path) -> None:
    both = drafters(tmp_path, variant, {"min_probability": 0.0, "draft_tokens": 4}, num_layers=2)
    assert assert_alike(both, [GREEDY] * 3, [DraftBudget(31, 9), DraftBudget(4, 2), DraftBudget(9, 5)])


@pytest.mark.parametrize("variant", SPEAKING)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=9),
        SamplingParams(temperature=1.3, top_p=0.8, min_p=0.01),
    ],
)
def test_with_the_noise_of_sampling_requests(params: SamplingParams, variant: str, tmp_path: Path) -> None:
    both = drafters(tmp_path, variant, {"min_probability": 0.001, "draft_tokens": 4})
    budgets = [DraftBudget(15, 5), DraftBudget(15, 2), DraftBudget(7, 5)]
    assert assert_alike(both, [params, GREEDY, params], budgets)


@pytest.mark.parametrize("variant", SPEAKING)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_in_every_precision(precision: str, variant: str, tmp_path: Path) -> None:
    both = drafters(tmp_path, variant, {"min_probability": 0.0, "precision": precision})
    assert assert_alike(both, [GREEDY] * 2, [DraftBudget(15, 5)] * 2)


@pytest.mark.parametrize("variant", SPEAKING)
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, top_k=20)])
def test_tokens_of_the_text_that_the_head_lacks_are_guessed(
    params: SamplingParams, variant: str, tmp_path: Path
) -> None:
    options = {"min_probability": 0.0, "width": 8, "draft_tokens": 3, "tree_nodes": 40}
    lacking = set(range(VOCAB)) - set(random_head(variant).target_ids.tolist())
    both = drafters(tmp_path, variant, options)
    budgets = [DraftBudget(40, 3)] * 3
    assert assert_alike(both, [params] * 3, budgets)
    guessed = {token for tree in rounds(both[0], [params] * 3, budgets) for token in tree.tokens.tolist()}
    assert guessed & lacking
    without = drafters(tmp_path, variant, {**options, "text_vocabulary": 0})[0]
    assert not {token for tree in rounds(without, [params] * 3, budgets) for token in tree.tokens.tolist()} & lacking


@pytest.mark.parametrize("variant", SPEAKING)
def test_tokens_that_the_target_lacks_are_not_guessed(variant: str, tmp_path: Path) -> None:
    both = drafters(tmp_path, variant, {"min_probability": 0.0, "width": 40, "tree_nodes": 60}, vocab=30)
    grown = rounds(both[0], [GREEDY], [DraftBudget(60, 2)])
    assert all((tree.tokens < 30).all() for tree in grown)
    assert_alike(both, [GREEDY], [DraftBudget(60, 2)])


@pytest.mark.parametrize("variant", [name for name, changes in BLOCKS.items() if "confidence" in changes])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, top_k=20)])
def test_a_confidence_ends_drafts_of_each_sequence_where_it_should(
    variant: str, params: SamplingParams, tmp_path: Path
) -> None:
    options = {"min_probability": 0.002, "width": 5, "tree_nodes": 40}
    budgets = [DraftBudget(40, 9)] * 3
    both, surely = drafters(tmp_path, variant, options), drafters(tmp_path, variant, {**options, "confidence": False})
    assert assert_alike(both, [params, GREEDY, params], budgets)
    assert assert_alike(surely, [params, GREEDY, params], budgets)
    depths = [
        [max(tree.depths.tolist(), default=0) for tree in rounds(drafter, [params] * 3, budgets)]
        for drafter in (both[0], surely[0])
    ]
    assert all(ended <= unended for ended, unended in zip(*depths, strict=True))
    assert sum(map(int.__lt__, *depths)) > 3
    assert len(set(depths[0])) > 1


def test_a_draft_may_be_asked_for_again(tmp_path: Path) -> None:
    """Nothing new was observed in between; the last true row is read anew."""
    grown, stepped = drafters(tmp_path, "eagle3", {"min_probability": 0.0})
    trees = []
    for drafter in (grown, grown, stepped):
        sequence = ToySequence(1, [5, 6, 7, 8], params=GREEDY)
        if drafter is not grown or not trees:
            drafter.begin(sequence)
            chunk = np.array([5, 6, 7], np.int32)
            drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty(), hidden=states(3, drafter, [1]))])
        trees.append(drafter.propose([sequence], [DraftBudget(9, 3)])[0])
    for tree in trees[1:]:
        np.testing.assert_array_equal(tree.tokens, trees[0].tokens)
    assert grown._readings[1].cache.rows == 3


def test_states_that_are_no_numbers_bring_no_guess(tmp_path: Path) -> None:
    drafter, _ = drafters(tmp_path, "eagle3", {"min_probability": 0.0, "precision": "fp32"})
    sequence = ToySequence(1, [5, 6, 7], params=GREEDY)
    drafter.begin(sequence)
    hidden = TapStates.of({tap: torch.full((2, HIDDEN), torch.nan) for tap in drafter.needs.taps})
    chunk = np.array([5, 6], np.int32)
    drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty(), hidden=hidden)])
    assert len(drafter.propose([sequence], [DraftBudget(9, 3)])[0]) == 0


def test_roots_that_cannot_be_read_are_refused() -> None:
    native = NativeEaglePass(random_head("eagle3"), tables(), "bf16", 1)
    growth = native.growth(2, np.arange(DRAFT_VOCAB, dtype=np.int32))
    cache, width = native.new_cache(), len(native.config.taps) * HIDDEN

    def grow(tokens: list[int], features: int) -> list[GrownTree]:
        rows = np.ones((features, width), np.float32)
        return growth.grow([DraftRoot(cache, np.array(tokens, np.int32), rows, 4, 2)], (-5.0, -4.0), None)

    with pytest.raises(ValueError, match="features"):
        grow([1], 2)
    with pytest.raises(ValueError, match="features"):
        grow([], 0)
    with pytest.raises(ValueError, match="vocabulary"):
        grow([VOCAB], 1)
    assert cache.rows == 0
    (tree,) = grow([3], 1)
    assert cache.rows == 1
    assert (tree.parents < np.arange(len(tree.tokens))).all()
    assert not len(tree.parents) or tree.parents[0] == ROOT
