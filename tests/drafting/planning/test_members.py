"""When one of several drafters is asked, by what it brings and takes."""

from __future__ import annotations

import pytest

from headstart.drafting.context import DraftContext
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.allowances import Allowance, Load
from headstart.drafting.planning.members import Brought, Member
from headstart.drafting.registry import create_drafter

ALONE, AMONG = Load(1, 0), Load(16, 0)


@pytest.fixture
def member() -> Member:
    return Member(create_drafter("suffix", DraftContext(12)), 1)


def asked(member: Member, load: Load, gain: float, seconds: float, rounds: int, rows: int = 0) -> Allowance:
    """The allowance of one sequence, whose every round gains so much; a plain round takes a second."""
    own = member.own_allowance(load)
    for _ in range(rounds):
        if member.asks(own, load):
            member.settle(load, [Brought(own, gain, rows)] * load.sequences, seconds, 0.1, 1.0)
        else:
            member.rested(load, 1)
            own.settle(1, 1)
    return own


def test_it_is_asked_where_its_guesses_save_more_than_questions_and_rows_take(member: Member) -> None:
    assert member.asks(asked(member, ALONE, gain=0.5, seconds=0.2, rounds=500, rows=2), ALONE)
    own = asked(member, ALONE, gain=0.5, seconds=0.2, rounds=60, rows=4)
    assert not member.asks(own, ALONE)


def test_a_question_that_never_pays_takes_half_a_percent_of_the_time(member: Member) -> None:
    own, questions = member.own_allowance(ALONE), 0
    for _ in range(5000):
        if member.asks(own, ALONE):
            member.settle(ALONE, [Brought(own, 0.0, 0)], 0.25, 0.1, 1.0)
            questions += 1
        else:
            member.rested(ALONE, 1)
            own.settle(1, 1)
    assert questions * 0.25 < c.START + 0.25 + 0.005 * 5000 + 1


def test_one_success_pays_for_some_questions(member: Member) -> None:
    own = asked(member, ALONE, gain=0.0, seconds=0.25, rounds=100)
    assert not member.asks(own, ALONE)
    member.settle(ALONE, [Brought(own, 3.0, 3)], 0.25, 0.1, 1.0)
    assert own.rounds > c.OWN


def test_what_it_is_worth_in_a_batch_says_nothing_of_one_alone(member: Member) -> None:
    for _ in range(8):
        asked(member, AMONG, gain=0.0, seconds=1.0, rounds=10)
    assert not member.asks(member.own_allowance(AMONG), AMONG)
    assert not member.asks(member.own_allowance(Load(20, 0)), Load(20, 0))
    assert member.asks(member.own_allowance(ALONE), ALONE)


def test_reading_a_prompt_once_does_not_end_it_for_the_sequence(member: Member) -> None:
    own = member.own_allowance(ALONE)
    member.settle(ALONE, [Brought(own, 0.0, 0, is_new=True)], 3.0, 0.1, 1.0)
    assert member.asks(own, ALONE)
    assert member.asking[ALONE.size].rounds < c.START - 2.0


def test_what_takes_too_long_to_hear_is_shown_no_more(member: Member) -> None:
    for _ in range(300):
        member.read(ALONE, 0.1, 1.0, 10.0)
    assert not member.hearing[ALONE.size].lasts
    for _ in range(200):
        member.read(AMONG, 0.04, 1.0, 10.0)
    assert member.hearing[AMONG.size].lasts


def test_an_adapter_whose_guesses_fail_costs_others_none(member: Member) -> None:
    other = ALONE._replace(adapter="other")
    for _ in range(8):
        asked(member, other, gain=0.0, seconds=1.0, rounds=10)
        member.heard(other, 3.0, 1.0, was_asked=True)
    assert not member.asks(member.own_allowance(other), other)
    assert not member.hearing[other.size].lasts
    assert member.asks(member.own_allowance(ALONE), ALONE)
    assert member.hearing[ALONE.size].lasts
