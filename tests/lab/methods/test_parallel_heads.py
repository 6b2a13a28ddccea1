"""Medusa and blockwise: which slot says which token, and the trees of ranks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from head_toys import head_drafter, random_parallel, random_tables, state_after, with_states
from toys import own_kit

from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome
from headstart.errors import ConfigError
from headstart.passes.batch import FINAL_TAP
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.medusa.drafter import MedusaOptions
from headstart_lab.methods.medusa.head import ParallelHeads, token_rows

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]
BUDGET = DraftBudget(nodes=12, depth=5)


def begin(drafter: Drafter, tokens: list[int]) -> ToySequence:
    sequence = ToySequence(1, list(tokens), params=SamplingParams(temperature=0))
    drafter.begin(sequence)
    chunk = np.asarray(tokens[:-1], dtype=np.int32)
    drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty())])
    return sequence


def logits_of(heads: ParallelHeads, state: torch.Tensor, root: int) -> torch.Tensor:
    """[slot, draft vocab], by the module itself."""
    tables = random_tables(VOCAB)
    shown = heads(state, token_rows(tables.embedding, torch.tensor(root)))
    return heads.logits(shown, tables.head[heads.target_ids])


@torch.no_grad()
def best_ids(heads: ParallelHeads, state: torch.Tensor, root: int, count: int) -> list[list[int]]:
    """[slot][rank] target ids."""
    best = logits_of(heads, state, root).topk(count).indices
    return heads.target_ids[best].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["medusa", "blockwise"])
def test_slot_i_reads_the_state_before_the_root_and_guesses_depth_i_plus_1(kind: str) -> None:
    """Root t4 is not cached: slot 0 on the state of t3 says t5 (and the target's own head said t4)."""
    drafter = head_drafter(kind, VOCAB, {})
    sequence = begin(drafter, PROMPT)
    best = best_ids(random_parallel(VOCAB, kind), state_after(PROMPT[:-1], FINAL_TAP), PROMPT[-1], 8)  # type: ignore[arg-type]
    tree = drafter.propose([sequence], [BUDGET])[0]
    for node, depth in enumerate(tree.depths.tolist()):
        assert int(tree.tokens[node]) in best[depth - 1]
    favourite = [ids[0] for ids in best]
    node = ROOT
    for token in favourite:
        child = tree.child_with(node, token)
        assert child is not None
        node = child


def test_after_a_round_the_last_accepted_rows_state_counts() -> None:
    drafter = head_drafter("blockwise", VOCAB, {})
    sequence = begin(drafter, PROMPT)
    tree = drafter.propose([sequence], [BUDGET])[0]
    first = int(tree.tokens[0])
    rows = np.asarray([PROMPT[-1], *tree.tokens.tolist()], dtype=np.int32)
    sequence.tokens.extend([first, 10])
    drafter.observe([RoundOutcome(sequence, 4, rows, tree, (0,), (first, 10))])
    best = best_ids(random_parallel(VOCAB, "blockwise"), state_after([*PROMPT, first], FINAL_TAP), 10, 1)
    assert drafter.propose([sequence], [BUDGET])[0].tokens.tolist() == [ids[0] for ids in best]


def test_medusa_guesses_by_the_root_too() -> None:
    """The state is the same, what was said after it is not."""
    heads, state = random_parallel(VOCAB, "medusa"), state_after(PROMPT[:-1], FINAL_TAP)
    roots = [root for root in range(VOCAB) if best_ids(heads, state, root, 1) != best_ids(heads, state, PROMPT[-1], 1)]
    for root in (PROMPT[-1], roots[0]):
        drafter = head_drafter("medusa", VOCAB, {"tree_nodes": 1})
        sequence = begin(drafter, [*PROMPT[:-1], root])
        assert drafter.propose([sequence], [BUDGET])[0].tokens.tolist() == best_ids(heads, state, root, 1)[0]


def test_no_guess_without_the_state_before_the_root() -> None:
    drafter = head_drafter("medusa", VOCAB, {})
    sequence = begin(drafter, PROMPT)
    sequence.tokens.append(7)
    assert len(drafter.propose([sequence], [BUDGET])[0]) == 0


def test_a_shape_of_ones_own() -> None:
    drafter = head_drafter("medusa", VOCAB, {"shape": ((0,), (1,), (1, 0), (1, 0, 2))})
    best = best_ids(random_parallel(VOCAB, "medusa"), state_after(PROMPT[:-1], FINAL_TAP), PROMPT[-1], 3)
    tree = drafter.propose([begin(drafter, PROMPT)], [BUDGET])[0]
    assert tree.tokens.tolist() == [best[0][0], best[0][1], best[1][0], best[2][2]]
    assert tree.parents.tolist() == [-1, -1, 1, 2]
    smaller = drafter.propose([begin(drafter, PROMPT)], [DraftBudget(2, 3)])[0]
    assert smaller.tokens.tolist() == [best[0][0], best[0][1]]


def test_what_is_no_list_of_paths_is_refused() -> None:
    for shape in (5, "x", [1.5], [0, 1]):
        with pytest.raises(ConfigError, match="give a list of paths"):
            MedusaOptions(shape=shape)


def test_a_tree_holds_the_paths_that_are_likeliest_together() -> None:
    """By enumeration of all paths, with the product of the slots' probabilities."""
    drafter = head_drafter("medusa", VOCAB, {"min_probability": 0, "width": 8, "tree_nodes": 10})
    heads = random_parallel(VOCAB, "medusa")
    with torch.no_grad():
        laws = logits_of(heads, state_after(PROMPT[:-1], FINAL_TAP), PROMPT[-1]).double().softmax(-1)
    ids = heads.target_ids.tolist()
    every = {
        tuple(ids[place] for place in path): math.prod(float(laws[slot, place]) for slot, place in enumerate(path))
        for depth in (1, 2, 3)
        for path in itertools.product(range(len(ids)), repeat=depth)
    }
    best = sorted(every, key=lambda path: (-every[path], len(path)))[:10]
    tree = drafter.propose([begin(drafter, PROMPT)], [BUDGET])[0]
    assert sorted(paths_of(tree)) == sorted(best)


def test_unlikely_paths_are_left_out() -> None:
    every, likely = (
        head_drafter("medusa", VOCAB, {"min_probability": least, "width": 8, "tree_nodes": 99}) for least in (0, 0.1)
    )
    many, few = (each.propose([begin(each, PROMPT)], [DraftBudget(99, 3)])[0] for each in (every, likely))
    assert 0 < len(few) < len(many)
    assert set(paths_of(few)) < set(paths_of(many))


def test_a_planner_says_how_unlikely_a_path_may_be() -> None:
    def paths(least: float | None, **options: float) -> list[tuple[int, ...]]:
        drafter = head_drafter("medusa", VOCAB, {"width": 8, "tree_nodes": 99, **options})
        return paths_of(drafter.propose([begin(drafter, PROMPT)], [DraftBudget(99, 3, min_probability=least)])[0])

    assert paths(None) == paths(None, min_probability=MedusaOptions().min_probability_of([BUDGET], own_kit()))
    assert paths(1e-6) == paths(None, min_probability=1e-6) != paths(None)
    assert paths(1e-6, min_probability=0.1) == paths(None, min_probability=0.1)


def paths_of(tree: DraftTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), token))
    return paths


@pytest.mark.parametrize("shape", [((0, 0),), ((0,), (0,)), ((0,), (-1,)), ((),)])
def test_senseless_shapes_are_refused(shape: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ConfigError, match="shape has"):
        MedusaOptions(model="x", shape=shape)


def test_with_states_pairs_rows_and_paths() -> None:
    """The made-up states of these tests: a tree's row shows its own path."""
    sequence = ToySequence(1, [1, 2, 3, 4])
    tree = DraftTree(np.asarray([7, 8], dtype=np.int32), np.asarray([-1, -1], dtype=np.int32))
    outcome = RoundOutcome(sequence, 2, np.asarray([3, 7, 8], dtype=np.int32), tree, (), (4,))
    shown = torch.from_numpy(with_states(outcome, (0,)).hidden[0])
    assert torch.equal(shown[2], state_after([1, 2, 3, 8], 0))
