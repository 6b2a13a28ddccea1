from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.drafting.planning.guess_rates import AGREED, CONTRADICTED, GuessRates, SequenceRates, first_rates
from headstart.drafting.planning.merged import Guesses, MergedGuesses
from headstart.drafting.planning.merged import merge as merge_with
from headstart.passes.draft_tree import MAX_GRADES, ROOT, DraftTree

UNJUDGED = [0.25] * 64


def rates(*chances: float) -> GuessRates:
    """Grade i is accepted with ``chances[i]``."""
    learned = GuessRates(UNJUDGED, weight=1e-9, memory=1e9)
    for grade, chance in enumerate(chances):
        for trial in range(1000):
            learned.count(grade, trial < 1000 * chance)
    return learned


def merge(proposals: list[tuple[int, Guesses, GuessRates]]) -> MergedGuesses:
    """Whatever others say, with the graded rates as estimates."""
    return merge_with([(bit, guesses, learned.rates * 3) for bit, guesses, learned in proposals])[0]


def relate(proposals: list[Guesses]) -> list[Guesses]:
    return merge_with([(1 << place, guesses, [0.5] * 3 * MAX_GRADES) for place, guesses in enumerate(proposals)])[1]


def ranked(merged: MergedGuesses, count: int) -> list[int]:
    return sorted(range(len(merged.reach)), key=lambda node: -merged.reach[node])[:count]


def count(guesses: Guesses, said: list[int], learned: GuessRates) -> None:
    for guess, holds in guesses.judge(said):
        learned.count(guesses.grades[guess], holds)


def guesses(tokens: list[int], parents: list[int], grades: list[int] | None = None) -> Guesses:
    return Guesses(tokens, parents, grades or [0] * len(tokens))


trees = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 2)), max_size=12).map(
    lambda rows: _tree(rows)
)


def _tree(rows: list[tuple[int, int, int]]) -> Guesses:
    tokens, parents, grades, seen = [], [], [], set()
    for token, place, grade in rows:
        parent = place % (len(tokens) + 1) - 1
        if (parent, token) not in seen:
            seen.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            grades.append(grade)
    return Guesses(tokens, parents, grades)


def paths(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    said: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        said.append((*(said[parent] if parent != ROOT else ()), token))
    return said


@given(st.lists(trees, min_size=1, max_size=3), st.integers(0, 20))
def test_the_merged_tree_holds_every_path_once_and_its_best_nodes_are_a_tree(many: list[Guesses], count: int) -> None:
    learned = rates(0.9, 0.5, 0.1)
    merged = merge([(1 << bit, each, learned) for bit, each in enumerate(many)])
    said = paths(merged.tokens, merged.parents)
    assert len(said) == len(set(said))
    assert set(said) == {path for each in many for path in paths(each.tokens, each.parents)}
    assert all(merged.reach[node] <= merged.reach[parent] for node, parent in enumerate(merged.parents) if parent >= 0)
    best = ranked(merged, count)
    tree = merged.tree(best)
    assert len(tree) == min(count, len(said))
    assert set(paths(tree.tokens.tolist(), tree.parents.tolist())) == {said[node] for node in best}
    assert sum(merged.reach[node] for node in best) == pytest.approx(sum(sorted(merged.reach, reverse=True)[:count]))


def test_the_likeliest_path_comes_first_row_by_row() -> None:
    """Its rows need not move in the cache when they are accepted."""
    learned = rates(0.9, 0.5, 0.1)
    unlikely, likely = (
        guesses([7, 8, 9], [ROOT, 0, 1], [2, 0, 0]),
        guesses([1, 2, 3, 4], [ROOT, ROOT, 1, 2], [1, 0, 0, 0]),
    )
    merged = merge([(1, unlikely, learned), (2, likely, learned)])
    tree = merged.tree(ranked(merged, 7))
    assert tree.tokens.tolist() == [2, 3, 4, 1, 7, 8, 9]
    assert tree.parents.tolist() == [ROOT, 0, 1, ROOT, ROOT, 4, 5]


@given(st.lists(trees, min_size=1, max_size=3))
def test_children_of_one_drafter_each_share_one_parents_chance(many: list[Guesses]) -> None:
    """With one guess a parent from every drafter, chances of siblings never add up to more than 1."""
    chains = [guesses(each.tokens, list(range(-1, len(each.tokens) - 1)), each.grades) for each in many]
    merged = merge([(1 << bit, chain, rates(0.9, 0.8, 0.7)) for bit, chain in enumerate(chains)])
    sums: dict[int, float] = {}
    for node, parent in enumerate(merged.parents):
        sums[parent] = sums.get(parent, 0.0) + float(merged.reach[node])
    for parent, total in sums.items():
        assert total <= (1.0 if parent == ROOT else merged.reach[parent]) + 1e-12


def test_chances_of_rivals_add_up_to_no_more_than_one_and_agreement_takes_the_mean() -> None:
    def reach(*guessed: tuple[int, float]) -> list[float]:
        return merge(
            [(1 << bit, guesses([token], [ROOT]), rates(rate)) for bit, (token, rate) in enumerate(guessed)]
        ).reach

    assert reach((5, 0.6)) == pytest.approx([0.6])
    assert reach((5, 0.6), (5, 0.5)) == pytest.approx([0.55])
    assert reach((5, 0.5), (5, 0.6), (5, 0.1)) == pytest.approx([0.4])
    assert reach((5, 0.6), (6, 0.3)) == pytest.approx([0.6, 0.3])
    assert reach((5, 0.75), (6, 0.5)) == pytest.approx([0.6, 0.4])


def test_grades_tell_what_others_say_in_a_guesss_place() -> None:
    #      root -> 1 -> 2 -> 3 (nobody else guesses there)
    #                -> 4 (the other guesses something else)
    first = guesses([1, 2, 4, 3], [ROOT, 0, 0, 1], [7, 8, 9, 10])
    second = guesses([5, 1, 2], [ROOT, ROOT, 1], [0, 1, 2])
    assert relate([first]) == [first]
    one, other = relate([first, second])
    assert one.grades == [7 + AGREED, 8 + AGREED, 9 + CONTRADICTED, 10]
    assert other.grades == [0 + CONTRADICTED, 1 + AGREED, 2 + AGREED]
    assert (one.tokens, one.parents) == (first.tokens, first.parents)
    assert relate([first, guesses([], [])])[0].grades == [7, 8, 9, 10]
    assert len(set(relate([first, second, guesses([1], [ROOT])])[2].grades) & {AGREED}) == 1


@given(st.lists(trees, min_size=2, max_size=3))
def test_whoever_agrees_is_agreed_with(many: list[Guesses]) -> None:
    said = [paths(each.tokens, each.parents) for each in many]
    for place, (own, related) in enumerate(zip(many, relate(many), strict=True)):
        others = {path for other, those in enumerate(said) if other != place for path in those}
        parents = {path[:-1] for path in others}
        for path, grade, with_others in zip(said[place], own.grades, related.grades, strict=True):
            wanted = AGREED if path in others else CONTRADICTED if path[:-1] in parents else 0
            assert with_others == grade + wanted


def test_guesses_are_judged_with_what_others_said() -> None:
    learned = first_rates(None)  # type: ignore[arg-type]
    before = list(learned.rates)
    one, _ = relate([guesses([1, 2], [ROOT, 0], [3, 3]), guesses([1], [ROOT], [0])])
    count(one, [1, 9], learned)
    assert learned.rates[3 + AGREED] > before[3 + AGREED]
    assert learned.rates[3] != before[3]
    assert learned.rates[3 + CONTRADICTED] == before[3 + CONTRADICTED]


def test_every_node_knows_who_guessed_it() -> None:
    learned = rates(0.5)
    merged = merge([(1, guesses([5, 6], [ROOT, 0]), learned), (2, guesses([7, 5], [ROOT, ROOT]), learned)])
    assert dict(zip(merged.tokens, merged.owners, strict=True)) == {5: 3, 6: 1, 7: 2}


def test_only_guesses_whose_parent_was_said_are_counted() -> None:
    #      root -> 1 (said) -> 2 (refused: 9 was said) -> 3 (never judged)
    #           -> 4 (refused) -> 9 (its parent was refused: not judged)
    learned = GuessRates(UNJUDGED, weight=1e-9, memory=1e9)
    count(Guesses([1, 4, 2, 9, 3], [ROOT, ROOT, 0, 1, 2], [0, 1, 2, 3, 4]), [1, 9], learned)
    assert [learned.rates[grade] for grade in range(3)] == pytest.approx([1, 0, 0], abs=1e-6)
    untouched = GuessRates(UNJUDGED, weight=1e-9, memory=1e9).rates[0]
    assert [learned.rates[grade] for grade in (3, 4)] == [untouched] * 2


def test_guesses_beyond_what_was_said_are_not_counted() -> None:
    learned = GuessRates(UNJUDGED, weight=1e-9, memory=1e9)
    count(Guesses([1, 2], [ROOT, 0], [0, 1]), [1], learned)
    assert learned.rates[0] == pytest.approx(1)
    assert learned.rates[1] == GuessRates(UNJUDGED, weight=1e-9, memory=1e9).rates[1]


def test_siblings_after_the_accepted_one_are_counted_too() -> None:
    learned = GuessRates(UNJUDGED, weight=1e-9, memory=1e9)
    count(Guesses([7, 1, 2], [ROOT, ROOT, ROOT], [0, 1, 2]), [1, 5], learned)
    assert [learned.rates[grade] for grade in range(3)] == pytest.approx([0, 1, 0], abs=1e-6)


def test_what_is_judged_beside_others_tells_of_the_grade_itself() -> None:
    learned = GuessRates(UNJUDGED * 3, weight=1e-9, memory=1e9)
    for trial in range(30):
        learned.count(3 + AGREED, trial < 24)
        learned.count(3 + CONTRADICTED, trial < 6)
    assert [learned.rates[3 + more] for more in (AGREED, CONTRADICTED, 0)] == pytest.approx([0.8, 0.2, 0.5])
    assert learned.rates[4] == UNJUDGED[4]


def test_a_sequence_starts_from_what_others_taught_and_turns_to_its_own() -> None:
    shared = GuessRates(UNJUDGED, weight=2, memory=1000)
    for trial in range(400):
        shared.count(trial % 2, trial % 4 < 2)
    own = SequenceRates(shared)
    assert own.rates == shared.rates
    assert own[0] == pytest.approx(0.5, abs=0.01)
    for _ in range(12):
        own.count(0, False)
    assert own[0] < 0.25 < 0.45 < shared.rates[0]
    assert own[1] < 0.3, "what fails here, fails in all grades"
    for _ in range(200):
        own.count(1, True)
    assert own[1] == 1.0


def test_the_past_is_forgotten() -> None:
    learned = GuessRates(UNJUDGED, weight=2, memory=60)
    for accepted in [False] * 1000 + [True] * 100:
        learned.count(0, accepted)
    assert learned.rates[0] > 0.7


def test_probe_nodes_are_no_guesses() -> None:
    tree = DraftTree(
        np.array([3, 4, 5, 6], dtype=np.int32),
        np.array([ROOT, ROOT, 0, 1], dtype=np.int32),
        probe=np.array([True, False, True, False]),
    )
    left = Guesses.of(tree)
    assert (left.tokens, left.parents) == ([4, 6], [ROOT, 0])
