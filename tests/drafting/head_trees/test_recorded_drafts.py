"""Drafts that are grown on a device and recorded there are, tree for tree, those that grow step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from grown_toys import (
    CASES,
    GREEDY,
    HIDDEN,
    VOCAB,
    assert_alike,
    called,
    drafter_of,
    drafters,
    random_head,
    rounds,
    states,
)
from reruns import Reruns

from headstart.backends.torch.eagle_growth import DraftShape, EagleGrowth
from headstart.backends.torch.kit import TorchKit
from headstart.drafting.base import DraftBudget, RoundOutcome
from headstart.drafting.head_trees.head_drafter import HeadDrafter
from headstart.passes.batch import TapStates
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams

VARIANTS = ("eagle3", "eagle2")
BUDGETS = [DraftBudget(31, 9), DraftBudget(4, 2), DraftBudget(9, 5)]
FP32 = {"precision": "fp32"}


@pytest.fixture
def recorder() -> Reruns:
    return Reruns(torch.device("cpu"))


@pytest.fixture
def kit(recorder: Reruns) -> TorchKit:
    return TorchKit("cpu", recorder)


def recorded(drafter: HeadDrafter) -> int:
    growth = called(drafter)
    assert isinstance(growth, EagleGrowth)
    return len(growth.recordings)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CASES)
def test_grown_trees_are_those_of_steps(name: str, variant: str, tmp_path: Path, kit: TorchKit) -> None:
    both = drafters(tmp_path, variant, {**CASES[name], **FP32}, kit=kit)
    nodes = sum(assert_alike(both, [GREEDY] * 3, BUDGETS) for _ in range(2))
    assert nodes > 0 or name == "defaults"
    assert recorded(both[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_of_heads_of_several_layers(variant: str, tmp_path: Path, kit: TorchKit) -> None:
    options = {"min_probability": 0.0, "draft_tokens": 4, **FP32}
    assert assert_alike(drafters(tmp_path, variant, options, num_layers=2, kit=kit), [GREEDY] * 3, BUDGETS)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=9),
        SamplingParams(temperature=1.3, top_p=0.8, min_p=0.01),
    ],
)
def test_with_the_noise_of_sampling_requests(params: SamplingParams, tmp_path: Path, kit: TorchKit) -> None:
    both = drafters(tmp_path, "eagle3", {"min_probability": 0.001, "draft_tokens": 4, **FP32}, kit=kit)
    budgets = [DraftBudget(15, 5), DraftBudget(15, 2), DraftBudget(7, 5)]
    for _ in range(2):
        assert assert_alike(both, [params, GREEDY, params], budgets)
    assert recorded(both[0])


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, top_k=20)])
def test_tokens_of_the_text_that_the_head_lacks_are_guessed(
    params: SamplingParams, tmp_path: Path, kit: TorchKit
) -> None:
    options = {"min_probability": 0.0, "width": 8, "draft_tokens": 3, "tree_nodes": 40, **FP32}
    lacking = set(range(VOCAB)) - set(random_head("eagle3").target_ids.tolist())
    both = drafters(tmp_path, "eagle3", options, kit=kit)
    budgets = [DraftBudget(40, 3)] * 3
    for _ in range(2):
        assert assert_alike(both, [params] * 3, budgets)
    assert {token for tree in rounds(both[0], [params] * 3, budgets) for token in tree.tokens.tolist()} & lacking


def test_tokens_that_the_target_lacks_are_not_guessed(tmp_path: Path, kit: TorchKit) -> None:
    options = {"min_probability": 0.0, "width": 40, "tree_nodes": 60, **FP32}
    both = drafters(tmp_path, "eagle3", options, vocab=30, kit=kit)
    assert all((tree.tokens < 30).all() for tree in rounds(both[0], [GREEDY], [DraftBudget(60, 2)]))
    assert_alike(both, [GREEDY], [DraftBudget(60, 2)])


def test_states_that_are_no_numbers_bring_no_guess(tmp_path: Path, kit: TorchKit) -> None:
    drafter, _ = drafters(tmp_path, "eagle3", {"min_probability": 0.0, **FP32}, kit=kit)
    sequence = ToySequence(1, [5, 6, 7], params=GREEDY)
    drafter.begin(sequence)
    hidden = TapStates.of({tap: torch.full((2, HIDDEN), torch.nan) for tap in drafter.needs.taps})
    drafter.observe([RoundOutcome(sequence, 0, np.array([5, 6], np.int32), DraftTree.empty(), hidden=hidden)])
    assert len(drafter.propose([sequence], [DraftBudget(9, 3)])[0]) == 0


@pytest.mark.thorough
def test_where_caches_move_nothing_old_is_replayed(tmp_path: Path, kit: TorchKit, recorder: Reruns) -> None:
    """A text that is longer than all rows that there were at first."""
    both = drafters(tmp_path, "eagle3", {"min_probability": 0.0, "draft_tokens": 2, "width": 2, **FP32}, kit=kit)
    tokens = np.random.default_rng(0).integers(0, VOCAB, 4200).tolist()
    trees = []
    for drafter in both:
        sequences = [ToySequence(1, tokens[:5], params=GREEDY), ToySequence(2, tokens, params=GREEDY)]
        for sequence in sequences:
            drafter.begin(sequence)
            chunk = np.array(sequence.tokens[:-1], np.int32)
            hidden = states(len(chunk), drafter, [7])
            drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty(), hidden=hidden)])
            trees += [drafter.propose([sequence], [DraftBudget(6, 2)])[0] for _ in range(3)]
        trees += [drafter.propose(sequences[:1], [DraftBudget(6, 2)])[0] for _ in range(2)]
    half = len(trees) // 2
    for grown, stepped in zip(trees[:half], trees[half:], strict=True):
        np.testing.assert_array_equal(grown.tokens, stepped.tokens)
        np.testing.assert_array_equal(grown.parents, stepped.parents)
    assert recorder.replayed > recorder.recorded


def test_rows_of_texts_that_ended_are_given_back(tmp_path: Path, kit: TorchKit) -> None:
    drafter, _ = drafters(tmp_path, "eagle3", {"min_probability": 0.0, "draft_tokens": 2, **FP32}, kit=kit)
    growth = called(drafter)
    assert isinstance(growth, EagleGrowth)
    pool = growth._text_rows._pool
    for _ in range(3):
        rounds(drafter, [GREEDY] * 3, BUDGETS)
        taken = pool._blocks - len(pool._free)
        assert taken == 3
    for name in range(3):
        drafter.end(name)
    assert len(pool._free) == pool._blocks


@pytest.mark.parametrize(
    "params", [[GREEDY] * 3, [GREEDY, SamplingParams(temperature=1.0), SamplingParams(temperature=0.7, top_k=9)]]
)
@pytest.mark.parametrize("options", [{}, {"width": 3, "draft_tokens": 4}, {"draft_tokens": 1}])
def test_guesses_of_one_pass_are_those_that_are_not_recorded(
    options: dict[str, object], params: list[SamplingParams], tmp_path: Path, kit: TorchKit, recorder: Reruns
) -> None:
    own = {"min_probability": 0.0, **FP32, **options}
    both = [drafter_of(tmp_path, "p-eagle", own, kit=each) for each in (kit, TorchKit("cpu"))]
    assert called(both[0]) is called(both[1]) is None
    for _ in range(2):
        assert assert_alike(both, params, BUDGETS)
    assert recorder.replayed > recorder.recorded > 0


@pytest.mark.parametrize(
    ("depth", "scored", "stages"),
    [
        (1, False, [(0, 1)]),
        (2, False, [(0, 2)]),
        (3, False, [(0, 2), (3, 3)]),
        (8, False, [(0, 2), (3, 4), (5, 8)]),
        (2, True, [(0, 0), (1, 1), (2, 2)]),
    ],
)
def test_looks_are_taken_after_twice_as_many_levels(depth: int, scored: bool, stages: list[tuple[int, int]]) -> None:
    assert DraftShape(1, 4, 128, 0, depth, scored).stages == stages
