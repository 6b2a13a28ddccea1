"""PaSS: where its look-ahead rows stand, what it makes of them, and what it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from drafting_toys import ToySequence, read_prompt, second_order_target, verify_greedily
from head_toys import head_context, head_drafter

from headstart.drafting.base import DraftBudget, Drafter
from headstart.drafting.registry import create_drafter
from headstart.errors import CheckpointError, ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart_lab.methods.lookahead_embeddings.drafter import PassOptions
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_train.files.heads import save_head

VOCAB = 12
TARGET = second_order_target(VOCAB)
WIDE = DraftBudget(nodes=40, depth=20)


def begun(**options: object) -> tuple[Drafter, ToySequence]:
    drafter = head_drafter("pass", VOCAB, options)
    sequence = ToySequence(1, [3, 1, 4, 1, 5])
    drafter.begin(sequence)
    drafter.observe([read_prompt(sequence)])
    return drafter, sequence


def parts(tree: DraftTree) -> tuple[list[int], dict[int, list[int]]]:
    """Guessed tokens of the chain, and the number of look-ahead rows behind the root and each guess."""
    probe = np.zeros(len(tree), bool) if tree.probe is None else tree.probe
    guesses = np.flatnonzero(~probe).tolist()
    assert tree.parents[guesses].tolist() == [ROOT, *guesses][: len(guesses)]
    behind = {node: [] for node in (ROOT, *guesses)}
    for node in np.flatnonzero(probe).tolist():
        above = int(tree.parents[node])
        while above not in behind:
            above = int(tree.parents[above])
        behind[above].append(node)
    return tree.tokens[guesses].tolist(), behind


def test_look_ahead_rows_stand_behind_the_root_and_every_guess() -> None:
    drafter, sequence = begun(tree_nodes=15)
    for _ in range(6):
        tree = drafter.propose([sequence], [WIDE])[0]
        _, behind = parts(tree)
        assert all(len(rows) == 3 for rows in behind.values())
        assert tree.inputs is not None
        assert tree.inputs.rows.tolist() == sorted(row for rows in behind.values() for row in rows)
        values = dict(zip(tree.inputs.rows.tolist(), tree.inputs.values, strict=True))
        for rows in behind.values():
            assert [int(tree.parents[row]) for row in rows[1:]] == rows[:-1]
            assert all(values[row].equal(drafter.drafter._embeddings[slot]) for slot, row in enumerate(rows))  # type: ignore[attr-defined]
        outcome = verify_greedily(sequence, tree, TARGET, 1)
        drafter.observe([outcome])
        end = outcome.accepted[-1] if outcome.accepted else ROOT
        assert outcome.top_ids is not None
        expected = [int(outcome.top_ids[row + 1, 0]) for row in behind[end]]
        assert parts(drafter.propose([sequence], [WIDE])[0])[0] == expected


@pytest.mark.parametrize(
    ("nodes", "depth", "guesses", "slots"),
    [
        (15, 9, 3, 3),
        (14, 9, 2, 3),
        (10, 9, 1, 3),  # two guesses with their rows would take eleven
        (6, 9, 3, 0),  # no room for one guess and six rows: guess now, look ahead next time
        (2, 9, 2, 0),
        (15, 4, 2, 2),
        (15, 3, 2, 1),
        (15, 1, 1, 0),
        (0, 9, 0, 0),
        (9, 0, 0, 0),
    ],
)
def test_rows_are_shared_out_by_the_budget(nodes: int, depth: int, guesses: int, slots: int) -> None:
    drafter, sequence = begun(tree_nodes=40)
    tree = drafter.propose([sequence], [WIDE])[0]
    drafter.observe([verify_greedily(sequence, tree, TARGET, 1)])
    tokens, behind = parts(drafter.propose([sequence], [DraftBudget(nodes, depth)])[0])
    assert len(tokens) == guesses
    assert {len(rows) for rows in behind.values()} == {slots}


def test_without_expectations_it_only_looks_ahead() -> None:
    drafter, sequence = begun()
    for budget, rows in ((WIDE, 3), (DraftBudget(2, 9), 2), (DraftBudget(9, 1), 1)):
        tokens, behind = parts(drafter.propose([sequence], [budget])[0])
        assert (tokens, len(behind[ROOT])) == ([], rows)


def test_expectations_do_not_outlive_a_round_without_them() -> None:
    drafter, sequence = begun()
    drafter.observe([verify_greedily(sequence, drafter.propose([sequence], [WIDE])[0], TARGET, 1)])
    assert parts(drafter.propose([sequence], [WIDE])[0])[0]
    drafter.observe([verify_greedily(sequence, DraftTree.empty(), TARGET, 1)])
    assert parts(drafter.propose([sequence], [WIDE])[0])[0] == []


def test_embeddings_of_another_target_are_refused(tmp_path: Path) -> None:
    save_head(LookaheadEmbeddings(2, 5), tmp_path)
    with pytest.raises(CheckpointError, match="5 numbers"):
        create_drafter("pass", head_context(VOCAB), model=str(tmp_path))
    with pytest.raises(ConfigError, match="name the directory"):
        create_drafter("pass", head_context(VOCAB))
    with pytest.raises(ConfigError, match="draft_tokens is 0"):
        PassOptions(draft_tokens=0)
