"""What the planner estimates of a sequence's guesses, and what it learns of them."""

from __future__ import annotations

import pytest
from drafting_toys import ToySequence

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.methods.auto.outsiders import Outsiders
from headstart.drafting.planning.allowances import Load, Safeguard
from headstart.drafting.planning.followed import Followed
from headstart.drafting.planning.guess_rates import AGREED, CONTRADICTED
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.merged import Guesses
from headstart.drafting.registry import create_drafter
from headstart.passes.draft_tree import ROOT


def view(number: int) -> InnerSequence:
    return InnerSequence.of(ToySequence(number, [1, 2, 3]))


@pytest.fixture
def members() -> list[Member]:
    return [Member(create_drafter("suffix", DraftContext(12)), 1 << place) for place in range(2)]


def guessing(members: list[Member]) -> Followed:
    """The first drafter says 5 6, the second 5 or 7."""
    followed = Followed.begin(view(1), members)
    followed.guesses = [(0, Guesses([5, 6], [ROOT, 0], [0, 0])), (1, Guesses([5, 7], [ROOT, ROOT], [0, 0]))]
    return followed


def test_at_first_guesses_are_as_likely_as_their_rates_say(members: list[Member]) -> None:
    followed = guessing(members)
    followed.merge(members)
    one, other = (each.rates for each in followed.rates)
    assert followed.merged.tokens == [5, 6, 7]
    assert followed.merged.chances == pytest.approx([(one[AGREED] + other[AGREED]) / 2, one[0], other[CONTRADICTED]])


def test_what_is_judged_is_learnt_by_who_guessed_it(members: list[Member]) -> None:
    followed = guessing(members)
    followed.merge(members)
    one, other = (member.rates.rates for member in members)
    before = one.copy(), other.copy()
    followed.judge([5, 9])
    assert one[AGREED] > before[0][AGREED]
    assert one[0] != before[0][0]
    assert other[AGREED] > before[1][AGREED]
    assert other[CONTRADICTED] < before[1][CONTRADICTED]
    assert followed.guesses == []
    after = one.copy()
    followed.judge([5, 9])
    assert one == after


def test_the_first_of_them_alone_are_worth_what_they_are_without_the_others(members: list[Member]) -> None:
    for _ in range(20):
        members[0].rates.count(AGREED, True)
        members[0].rates.count(CONTRADICTED, False)
        members[0].rates.count(CONTRADICTED, False)
    followed = guessing(members)
    followed.merge(members)
    alone = followed.merged_first(members, 1)
    assert (alone.tokens, alone.parents) == ([5, 6], [ROOT, 0])
    assert alone.chances == [members[0].rates.rates[0]] * 2
    assert followed.merged.chances[0] > alone.chances[0]


def test_who_copies_goes_on_behind_what_another_guesses() -> None:
    """A text is said again with one word changed: the head knows the word, the text what follows it."""
    members = [
        Member(create_drafter("suffix", DraftContext(50)), 1),
        Member(create_drafter("ngram", DraftContext(50)), 2),
    ]
    sequence = InnerSequence.of(ToySequence(1, [*range(20, 40), 1, 2, 20, 21, 22, 9]))
    members[0].drafter.begin(sequence)
    followed = Followed.begin(sequence, members)

    def after(guesses: Guesses, depth: int = 8) -> list[int]:
        copied = Guesses.of(members[0].drafter.propose([sequence], [DraftBudget(8, depth)])[0])
        followed.guesses = [(0, copied), (1, guesses)]
        followed.merge(members)
        before = followed.merged
        followed.go_on(members, DraftBudget(8, depth), Outsiders([], DraftContext(50)).guesses)
        merged = followed.merged
        assert merged.tokens[: len(before.tokens)] == before.tokens
        assert merged.owners[len(before.tokens) :] == [1] * (len(merged.tokens) - len(before.tokens))
        assert all(
            reach <= merged.reach[parent]
            for reach, parent in zip(merged.reach, merged.parents, strict=True)
            if parent >= 0
        )
        return [merged.tokens[node] for node in merged.likeliest()]

    assert after(Guesses([24, 25], [ROOT, 0], [0, 0])) == [24, 25, *range(26, 32)]
    assert after(Guesses([24, 25], [ROOT, 0], [0, 0]), depth=4) == [24, 25, 26, 27]
    assert after(Guesses([24, 25], [ROOT, 0], [0, 0]), depth=2) == [24, 25]
    assert after(Guesses([48, 49], [ROOT, 0], [0, 0])) == [48, 49]
    assert after(Guesses([], [], [])) == []


def test_who_was_shown_the_beginning_is_shown_the_rest_while_it_is_asked(members: list[Member]) -> None:
    """Else a prompt would be read for nothing."""
    member, load, safeguard = members[0], Load(1, 0), Safeguard()
    followed, late = Followed.begin(view(1), members), Followed.begin(view(2), members)
    assert followed.goes_on_hearing(0, member, load, safeguard)
    member.read(load, 100.0, 1.0, 0.0)
    assert followed.goes_on_hearing(0, member, load, safeguard)
    assert not late.goes_on_hearing(0, member, load, safeguard)
    followed.allowance(0, member, load).settle(0.0, 100.0)
    assert not followed.goes_on_hearing(0, member, load, safeguard)
    assert followed.unheard[0]
