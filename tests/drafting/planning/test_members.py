from __future__ import annotations

import pytest

from headstart.drafting.context import DraftContext
from headstart.drafting.planning.members import Member, Standing
from headstart.drafting.registry import create_drafter


@pytest.fixture
def member() -> Member:
    member = Member(create_drafter("suffix", DraftContext(12)), 1)
    for sequences in (1, 2, 4, 16):
        member.cost.add(sequences, 0.01 * sequences)
    return member


def judged(member: Member, worth: float, roots: int, rounds: int) -> Standing:
    standing = Standing()
    for _ in range(rounds):
        member.judge(standing, worth, roots)
    return standing


def test_reading_a_prompt_is_part_of_what_a_question_costs(member: Member) -> None:
    standing = judged(member, 0.02, 1, 100)
    assert not member.rests(standing, 1)
    member.first_cost.add(10.0)
    member.judge(standing, 0.02, 1)
    assert member.rests(standing, 1)


def test_what_it_is_worth_in_a_batch_says_nothing_of_one_alone(member: Member) -> None:
    judged(member, 0.0, 16, 200)
    judged(member, 0.1, 1, 200)
    assert member.rests(Standing(), 16)
    assert member.rests(Standing(), 20)
    assert not member.rests(Standing(), 1)
    assert not member.rests(Standing(), 4), "never seen"


def test_a_few_rounds_say_too_little_of_new_sequences(member: Member) -> None:
    own = judged(member, 0.0, 2, 10)
    assert member.rests(own, 2)
    assert not member.rests(Standing(), 2)


def test_a_seldom_success_pays_for_many_cheap_questions(member: Member) -> None:
    standing = judged(member, 0.0, 4, 0)
    asked = 0
    for number in range(400):
        member.judge(standing, 0.4 if number % 10 == 0 else 0.0, 4)
        asked += not member.rests(standing, 4)
    assert asked > 380


def test_probes_are_paid_for_by_the_time_between(member: Member) -> None:
    member.rested(probe_seconds=1.0, round_seconds=1.0)
    rounds = 0
    while not member.probe_is_due:
        member.rested(probe_seconds=0.0, round_seconds=1.0)
        rounds += 1
    assert 40 <= rounds <= 100


def test_a_probe_shows_that_a_disturbance_is_over(member: Member) -> None:
    standing = judged(member, 0.02, 1, 100)
    for _ in range(9):
        member.cost.add(1, 0.5)
        member.cost.add(4, 1.0)
    assert member.rests(standing, 1)
    member.rested(probe_seconds=0.6, round_seconds=1.0)
    assert member.seconds(1) == 0.5, "a probe that was disturbed itself says nothing"
    member.rested(probe_seconds=0.01, round_seconds=1.0)
    assert not member.rests(standing, 1)
    assert member.seconds(4) == pytest.approx(0.02)


def test_what_is_read_once_for_all_pays_for_many(member: Member) -> None:
    """A question that costs as much for four as for one is asked about four where it would not be about one."""
    member.cost.add(4, 0.012)
    member.cost.add(4, 0.012)
    standings = [judged(member, 0.005, 4, 100) for _ in range(4)]
    assert not any(member.rests(standing, 4) for standing in standings)
    assert not member.loses(standings, 4)
    assert member.loses(standings[:1], 4)


def test_what_a_guess_was_worth_among_many_is_forgotten_when_few_are_left(member: Member) -> None:
    standing = judged(member, 0.001, 8, 100)
    assert member.rests(standing, 8)
    assert not member.rests(standing, 2)
    member.judge(standing, 0.05, 2)
    assert standing.worth == pytest.approx(0.05)


def test_a_probe_of_several_rounds_says_as_much_of_what_is_usual_as_they_do(member: Member) -> None:
    judged(member, 0.001, 4, 100)
    again = Member(member.drafter, 1, cost=member.cost)
    judged(again, 0.001, 4, 100)
    for _ in range(8):
        member.judge(Standing(), 0.1, 4)
    again.judge(Standing(), 0.1, 4, rounds=8)
    assert again.usual(4).rounds == member.usual(4).rounds == 108
    assert again.usual(4).worth == pytest.approx(member.usual(4).worth, rel=0.1)
