"""Drafts grown in one native call are, tree for tree, those that grow step by step, or of one pass in Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from grown_toys import (
    BLOCKS,
    CASES,
    DRAFT_VOCAB,
    GREEDY,
    HIDDEN,
    REDUCED,
    SPEAKING,
    VARIANTS,
    VOCAB,
    assert_alike,
    called,
    drafters,
    random_head,
    rounds,
    states,
    tables,
)
from native_here import needs_native

from headstart.backends.native.growth import NativeGrowth
from headstart.backends.native.heads import NativeEaglePass
from headstart.drafting.base import DraftBudget, RoundOutcome
from headstart.drafting.heads.head_pass import DraftRoot, GrownTree
from headstart.passes.batch import TapStates
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.params import SamplingParams

pytestmark = needs_native


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_grown_trees_are_those_of_steps(name: str, variant: str, tmp_path: Path) -> None:
    both = drafters(tmp_path, variant, CASES[name])
    assert isinstance(called(both[0]), NativeGrowth)
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


@pytest.mark.parametrize("variant", REDUCED)
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
    assert grown.reader.readings[1].cache.rows == 3


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
