"""What every drafter owes the engine, over all registered ones.

Most must guess from their sequence's tokens and noise alone; ``conftest.py`` names those that remember rejected
rows or other sequences on purpose, and are spared those checks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from drafting_toys import (
    CONTRACT_VOCAB,
    ToySequence,
    check_tree,
    footprint,
    play,
    read_prompt,
    second_order_target,
    shape,
    verify_greedily,
)

from headstart.drafting.abilities import fork_or_begin
from headstart.drafting.base import DraftBudget, Drafter
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import SequenceNoise

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 1, 4]
OTHER_PROMPT = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5]
BUDGET = DraftBudget(nodes=9, depth=6)
TARGET = second_order_target(CONTRACT_VOCAB)

NewDrafter = Callable[[], Drafter]


def begin(drafter: Drafter, sequence: ToySequence) -> ToySequence:
    drafter.begin(sequence)
    drafter.observe([read_prompt(sequence)])
    return sequence


def shapes(history: list[list[DraftTree]]) -> list[list[object]]:
    return [[shape(tree) for tree in trees] for trees in history]


@pytest.mark.parametrize("nodes", [0, 1, 3, 64])
@pytest.mark.parametrize("depth", [0, 1, 2, 64])
def test_budgets_are_kept(new_drafter: NewDrafter, nodes: int, depth: int) -> None:
    drafter = new_drafter()
    sequence = begin(drafter, ToySequence(1, list(PROMPT)))
    history = play(drafter, [sequence], TARGET, 12, DraftBudget(nodes, depth), CONTRACT_VOCAB)
    if nodes == 0 or depth == 0:
        assert all(len(tree) == 0 for trees in history for tree in trees)


def test_each_sequence_has_its_own_budget(new_drafter: NewDrafter) -> None:
    drafter = new_drafter()
    sequences = [begin(drafter, ToySequence(i, PROMPT * 2)) for i in range(4)]
    play(drafter, sequences, TARGET, 8, BUDGET, CONTRACT_VOCAB)
    budgets = [DraftBudget(4, 4), DraftBudget(0, 0), DraftBudget(1, 9), DraftBudget(9, 1)]
    trees = drafter.propose(sequences, budgets)
    for tree, budget in zip(trees, budgets, strict=True):
        check_tree(tree, budget, CONTRACT_VOCAB)


def test_a_prompt_of_one_token(new_drafter: NewDrafter) -> None:
    drafter = new_drafter()
    sequence = begin(drafter, ToySequence(1, [5]))
    play(drafter, [sequence], TARGET, 20, BUDGET, CONTRACT_VOCAB)


def test_no_sequences(new_drafter: NewDrafter) -> None:
    drafter = new_drafter()
    assert drafter.propose([], []) == []
    drafter.observe([])


def test_same_calls_same_proposals(new_drafter: NewDrafter) -> None:
    histories = []
    for _ in range(2):
        drafter = new_drafter()
        sequences = [begin(drafter, ToySequence(i, list(p))) for i, p in enumerate((PROMPT, OTHER_PROMPT))]
        histories.append(shapes(play(drafter, sequences, TARGET, 9, BUDGET, CONTRACT_VOCAB)))
    assert histories[0] == histories[1]


def test_proposing_changes_nothing(new_drafter: NewDrafter) -> None:
    histories = []
    for proposals in (1, 3):
        drafter = new_drafter()
        sequence = begin(drafter, ToySequence(1, list(PROMPT)))
        histories.append(shapes(play(drafter, [sequence], TARGET, 8, BUDGET, CONTRACT_VOCAB, proposals)))
    assert histories[0] == histories[1]


def test_ends_of_unknown_and_ended_sequences_are_ignored(new_drafter: NewDrafter) -> None:
    drafter = new_drafter()
    drafter.end(99)
    sequence = begin(drafter, ToySequence(1, list(PROMPT)))
    tree = drafter.propose([sequence], [BUDGET])[0]
    outcome = verify_greedily(sequence, tree, TARGET, drafter.needs.top_ids)
    drafter.end(1)
    drafter.end(1)
    drafter.observe([outcome])


def test_an_ended_sequence_leaves_nothing_behind(new_drafter: NewDrafter) -> None:
    """What is shared among requests is bounded: once it is full, three more leave not one item."""
    drafter, held = new_drafter(), []
    for number in range(16):
        sequence = begin(drafter, ToySequence(number, list(PROMPT)))
        play(drafter, [sequence], TARGET, 8, BUDGET, CONTRACT_VOCAB)
        drafter.end(number)
        held.append(footprint(drafter))
        if len(held) > 3 and held[-1] <= held[-4]:
            return
    pytest.fail(f"it holds ever more items: {held}")


def test_sequences_do_not_disturb_each_other(new_token_drafter: NewDrafter) -> None:
    prompts = [PROMPT, OTHER_PROMPT, [5]]
    alone = []
    for i, prompt in enumerate(prompts):
        drafter = new_token_drafter()
        sequence = begin(drafter, ToySequence(i, list(prompt), noise=SequenceNoise(i)))
        alone.append([trees[0] for trees in shapes(play(drafter, [sequence], TARGET, 8, BUDGET, CONTRACT_VOCAB))])

    drafter = new_token_drafter()
    sequences = [ToySequence(i, list(prompt), noise=SequenceNoise(i)) for i, prompt in enumerate(prompts)]
    for sequence in sequences:
        begin(drafter, sequence)
    for turn in range(8):
        # Each in its own call, in changing order, with a passer-by that is aborted.
        passer_by = begin(drafter, ToySequence(100 + turn, OTHER_PROMPT * 2))
        order = [sequences[(turn + i) % 3] for i in range(3)]
        for sequence in order:
            trees = play(drafter, [sequence], TARGET, 1, BUDGET, CONTRACT_VOCAB)[0]
            assert shape(trees[0]) == alone[sequence.id][turn]
        drafter.end(passer_by.id)


def test_guesses_follow_from_the_committed_tokens_alone(new_token_drafter: NewDrafter) -> None:
    """Whoever begins with the tokens present guesses like one who lived through them: nothing rejected stays."""
    veteran = new_token_drafter()
    sequence = begin(veteran, ToySequence(1, list(PROMPT)))
    for _ in range(9):
        novice = new_token_drafter()
        twin = begin(novice, ToySequence(1, list(sequence.tokens), sequence.prompt_length))
        tree = play(veteran, [sequence], TARGET, 1, BUDGET, CONTRACT_VOCAB)[0][0]
        assert shape(novice.propose([twin], [BUDGET])[0]) == shape(tree)


def test_a_preempted_sequence_goes_on_as_before(new_token_drafter: NewDrafter) -> None:
    histories = []
    for preempted in (False, True):
        drafter = new_token_drafter()
        sequence = begin(drafter, ToySequence(1, list(PROMPT)))
        history = shapes(play(drafter, [sequence], TARGET, 7, BUDGET, CONTRACT_VOCAB))
        if preempted:
            drafter.end(1)
            begin(drafter, sequence)
        histories.append(history + shapes(play(drafter, [sequence], TARGET, 7, BUDGET, CONTRACT_VOCAB)))
    assert histories[0] == histories[1]


def test_a_fork_guesses_like_the_sequence_that_it_was_forked_off(new_token_drafter: NewDrafter) -> None:
    drafter = new_token_drafter()
    source = begin(drafter, ToySequence(1, list(PROMPT)))
    play(drafter, [source], TARGET, 4, BUDGET, CONTRACT_VOCAB)
    (draft,) = drafter.propose([source], [BUDGET])
    fork = ToySequence(2, list(source.tokens), source.prompt_length)
    # The wrapper of drafters that read in the target's cache adds nothing to this.
    fork_or_begin(getattr(drafter, "drafter", drafter), source, fork)
    drafter.observe([verify_greedily(each, draft, TARGET, drafter.needs.top_ids) for each in (source, fork)])
    one, other = drafter.propose([source, fork], [BUDGET] * 2)
    assert shape(one) == shape(other)
    drafter.end(1)
    check_tree(drafter.propose([fork], [BUDGET])[0], BUDGET, CONTRACT_VOCAB)


def test_an_id_may_be_used_again(new_token_drafter: NewDrafter) -> None:
    drafter = new_token_drafter()
    begin(drafter, ToySequence(1, list(PROMPT)))
    drafter.end(1)
    again = begin(drafter, ToySequence(1, list(OTHER_PROMPT)))
    fresh = new_token_drafter()
    twin = begin(fresh, ToySequence(1, list(OTHER_PROMPT)))
    for _ in range(6):
        trees = [play(d, [s], TARGET, 1, BUDGET, CONTRACT_VOCAB)[0][0] for d, s in ((drafter, again), (fresh, twin))]
        assert shape(trees[0]) == shape(trees[1])
