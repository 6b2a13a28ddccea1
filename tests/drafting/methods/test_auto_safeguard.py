"""Whatever drafters and machines do, guesses lose next to nothing: in simulated time, everything included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from drafting_toys import ToySequence, read_prompt, verify_greedily
from planned_toys import BUDGET, PREDICTABLE, Clock, Oracle, begin, with_oracles

from headstart.drafting.base import BeamView, Drafter
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.allowances import Allowances, Load, PlainRounds
from headstart.passes.adapters import Adapter
from headstart.passes.rounds import StretchLimits
from headstart.sampling.params import SamplingParams

Cost = Callable[[int], float]
"""Seconds of a pass by its rows."""


def flat(rows: int) -> float:
    return 1.0


def race(
    drafter: Drafter, clock: Clock, sequences: Sequence[ToySequence], cost: Cost, rounds: int
) -> tuple[float, float]:
    """Seconds that some rounds took, questions and all, and that plain decoding takes for the same tokens."""
    began, passes = clock.now, 0.0
    before = sum(len(sequence.tokens) for sequence in sequences)
    for _ in range(rounds):
        trees = drafter.propose(sequences, [BUDGET] * len(sequences))
        rows = len(sequences) + sum(map(len, trees))
        passes += cost(rows)
        drafter.observe(
            [
                replace(verify_greedily(sequence, tree, PREDICTABLE, 0), pass_rows=rows, pass_seconds=cost(rows))
                for sequence, tree in zip(sequences, trees, strict=True)
            ]
        )
    said = (sum(len(sequence.tokens) for sequence in sequences) - before) / len(sequences)
    return clock.now - began + passes, said * cost(len(sequences))


def many(drafter: Drafter, count: int) -> list[ToySequence]:
    return [begin(drafter, number) for number in range(count)]


def slow(oracle: Oracle) -> None:
    oracle.price = 10.0


def wrong(oracle: Oracle) -> None:
    oracle.right = False


def seldom_slow(oracle: Oracle) -> None:
    """Five questions of six take nothing."""
    propose = oracle.propose

    def proposed(sequences, budgets):
        oracle.price = 0.0 if oracle.asked // len(sequences) % 6 else 5.0
        return propose(sequences, budgets)

    oracle.right, oracle.propose = False, proposed  # type: ignore[method-assign]


def slow_to_hear(oracle: Oracle) -> None:
    oracle.hearing, oracle.right = 0.5, False


@pytest.mark.parametrize("spoil", [slow, wrong, seldom_slow, slow_to_hear], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_drafter_that_does_not_pay_costs_half_a_percent(
    spoil: Callable[[Oracle], None], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what may be lost at first, and one question more."""
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.3))
    spoil(oracles["only"])
    taken, plain = race(drafter, oracles["only"].clock, many(drafter, batch), flat, 3000)
    question = max(oracles["only"].price, 5.0) * batch
    assert taken - plain < (1 + (spoil is slow_to_hear)) * (c.START + c.SHARE * plain) + question + 1.0
    assert taken > plain - 1e-6


@pytest.mark.parametrize("spoil", [slow, wrong, seldom_slow, slow_to_hear], ids=lambda spoil: spoil.__name__)
def test_one_that_paid_and_pays_no_more_costs_no_more_than_a_bound(
    spoil: Callable[[Oracle], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.3))
    sequences, clock = many(drafter, 1), oracles["only"].clock
    taken, plain = race(drafter, clock, sequences, flat, 300)
    assert plain > 2 * taken
    spoil(oracles["only"])
    taken, plain = race(drafter, clock, sequences, flat, 3000)
    assert taken - plain < c.MOST + c.SHARE * plain + 2 * 10.0


@pytest.mark.parametrize("where", ["begin", "end"])
def test_one_that_is_slow_where_sequences_begin_or_end_costs_no_more_than_a_bound(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short answers one after the other: it is told of few of them."""
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.3))
    oracle, told = oracles["only"], list[int]()
    oracle.right = False

    def dawdle(sequence: object) -> None:
        told.append(1)
        oracle.clock.now += 15.0

    setattr(oracle, where, dawdle)
    took = 0.0
    for number in range(1, 61):
        began = oracle.clock.now
        sequence = begin(drafter, number)
        before = oracle.clock.now - began
        taken, plain = race(drafter, oracle.clock, [sequence], flat, 20)
        began = oracle.clock.now
        drafter.end(number)
        took += before + taken - plain + oracle.clock.now - began
    assert took < 2 * c.START + c.SHARE * 60 * 20 + 2 * 15.0
    assert 0 < len(told) < 5


@pytest.mark.parametrize("batch", [1, 4])
def test_passes_that_become_dear_under_it_cost_no_more_than_a_bound(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are free, and then a single one takes a pass."""
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.1))
    sequences, clock = many(drafter, batch), oracles["only"].clock
    race(drafter, clock, sequences, flat, 300)
    taken, plain = race(drafter, clock, sequences, lambda rows: 1.0 + 4.0 * (rows > batch), 2000)
    assert taken - plain < c.MOST + c.SHARE * plain + 5.0


def test_a_machine_that_becomes_slow_ends_guesses_only_until_plain_rounds_were_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.2))
    sequences, clock = many(drafter, 1), oracles["only"].clock
    race(drafter, clock, sequences, flat, 300)
    taken, plain = race(drafter, clock, sequences, lambda rows: 3.0, 1500)
    assert plain > 2.5 * taken


def test_a_machine_that_becomes_fast_is_seen_by_rounds_with_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question takes half as long as a slow pass and brings a token; of a fast pass it takes one and a half."""
    drafter, oracles = with_oracles(monkeypatch, only=(1, 1.5))
    sequences, clock = many(drafter, 1), oracles["only"].clock
    race(drafter, clock, sequences, lambda rows: 3.0, 300)
    taken, plain = race(drafter, clock, sequences, flat, 1000)
    assert taken - plain < c.MOST + c.SHARE * plain + c.PLAIN_TIMINGS * 1.5


def test_warm_requests_spend_nothing_that_greedy_ones_have_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.3))
    clock = oracles["only"].clock
    greedy, warm = [ToySequence(number, [1, 2, 3, 4], params=SamplingParams(temperature=number)) for number in range(2)]
    for sequence, rounds in ((greedy, 300), (warm, 0)):
        drafter.begin(sequence)
        drafter.observe([read_prompt(sequence)])
        race(drafter, clock, [sequence], flat, rounds)
        drafter.end(greedy.id)
    oracles["only"].right = False
    taken, plain = race(drafter, clock, [warm], flat, 1000)
    assert taken - plain < c.START + c.SHARE * plain + 2.0


def test_the_less_guesses_save_the_oftener_plain_rounds_are_timed() -> None:
    def rounds(said: float) -> int:
        plain, load = PlainRounds(), Load(1, 0)
        for _ in range(c.PLAIN_LEAST):
            plain.add(load, 1.0)
        count = 0
        while not plain.due(load):
            plain.speculated(load, said, 1.0, 1.0)
            count += 1
        return count

    assert rounds(1.0) < rounds(1.2) < rounds(2.0) < rounds(4.0) < 1 / c.PLAIN_SHARE
    assert rounds(2.0) == 1 / c.PLAIN_SHARE / 2


def test_a_plain_round_takes_its_mean_where_the_machine_is_disturbed() -> None:
    plain, load = PlainRounds(), Load(1, 0)
    for number in range(2000):
        plain.add(load, 1.4 if number % 5 == 0 else 1.0)
    assert plain.seconds(load) == pytest.approx(1.08, abs=0.01)
    for number in range(2000):
        plain.add(load, 50.0 if number % 5 == 0 else 1.0)
    assert plain.seconds(load) == pytest.approx(1.0 + (c.DISTURBED_MOST - 1.0) / 5, abs=0.02)


@pytest.mark.parametrize("length", [1, 4])
def test_a_sequence_whose_guesses_fail_loses_little_after_many_whose_held(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they have filled what may be lost: it is seen by what it is, and so is the next one."""
    drafter, oracles = with_oracles(monkeypatch, only=(length, 0.25))
    oracle, lost = oracles["only"], list[float]()
    for number in range(1, 13):
        oracle.right = number <= 6
        sequence = begin(drafter, number)
        rounds = 20 if oracle.right else 64
        taken, plain = race(drafter, oracle.clock, [sequence], lambda rows: 0.8 + 0.2 * rows, rounds)
        lost.append(taken - plain)
        drafter.end(number)
    assert max(lost[:6]) < -5.0
    assert lost[6] < 14.0
    assert max(lost[7:]) < 10.0


def test_a_good_drafter_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guesses hold now and then: in turn none to three, a third more tokens a second than plain decoding's."""
    drafter, oracles = with_oracles(monkeypatch, only=(4, 0.8))
    oracles["only"].lengths = 4
    _, plain = race(drafter, oracles["only"].clock, many(drafter, 1), flat, 1000)
    assert oracles["only"].asked > 970
    assert plain > 2400


def test_one_that_becomes_good_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.3))
    sequences, clock = many(drafter, 1), oracles["only"].clock
    oracles["only"].right = False
    race(drafter, clock, sequences, flat, 1500)
    oracles["only"].right = True
    race(drafter, clock, sequences, flat, 400)
    taken, plain = race(drafter, clock, sequences, flat, 300)
    assert plain > 2.5 * taken


def test_what_is_learnt_in_company_is_not_used_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among sixteen a row takes its share of a pass, so nothing pays; alone rows are free."""

    def cost(rows: int) -> float:
        return max(rows, 16) / 16

    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.01))
    sequences, clock = many(drafter, 16), oracles["only"].clock
    taken, plain = race(drafter, clock, sequences, cost, 500)
    assert taken < 1.02 * plain
    for sequence in sequences[1:]:
        drafter.end(sequence.id)
    taken, plain = race(drafter, clock, sequences[:1], cost, 100)
    assert plain > 3 * taken


def test_prompts_are_read_along_while_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter that is slow to read prompts, and brings nothing, is shown few of them."""
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.1))
    oracle = oracles["only"]
    oracle.right, heard = False, []
    race(drafter, oracle.clock, many(drafter, 1), flat, 10)
    for number in range(2, 200):
        oracle.hearing, before = 2.0, oracle.clock.now
        sequence = ToySequence(number, [1, 2, 3, 4])
        drafter.begin(sequence)
        drafter.observe([replace(read_prompt(sequence), pass_rows=500, pass_seconds=10.0)])
        heard.append(oracle.clock.now > before)
        oracle.hearing = 0.0
        race(drafter, oracle.clock, [sequence], flat, 5)
        drafter.end(number)
    assert any(heard)
    assert 2.0 * sum(heard) < c.START + 2.0 + c.SHARE * 198 * 15.0 + 1.0


def test_nobody_is_asked_about_beams_nor_shown_them(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.0))
    only, beams = oracles["only"], [ToySequence(number, [1, 2, 3, 4]) for number in range(4)]
    for sequence in beams:
        sequence.beam = BeamView(7, 4, -1.0)  # type: ignore[attr-defined]
        drafter.begin(sequence)
        drafter.observe([read_prompt(sequence)])
    taken, plain = race(drafter, only.clock, beams, flat, 200)
    assert taken == plain
    assert (only.asked, only.heard) == (0, set())
    other = begin(drafter, 9)
    race(drafter, only.clock, [*beams, other], flat, 200)
    assert only.asked > 0, "about whoever decodes beside them"
    assert only.heard == {9}


class _Unready(Oracle):
    """Cannot take part in rounds at once, which it finds out late."""

    def stretch(self, sequences: Sequence[object], limits: Sequence[object]) -> None:
        self.clock.now += 5.0


def test_rounds_at_once_that_were_prepared_in_vain_are_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, _Unready, only=(3, 0.0))
    only, sequence = oracles["only"], begin(drafter)
    assert isinstance(drafter, AutoDrafter)
    limits = [StretchLimits(16, 1.0, 100, 100, frozenset(), BUDGET)]
    race(drafter, only.clock, [sequence], flat, c.PLAIN_LEAST)
    left = drafter.safeguard.allowances[Load.of([sequence]).size]
    before, began = left.rounds, only.clock.now
    assert drafter.stretch([sequence], limits) is None
    assert only.clock.now == began + 5.0
    assert left.rounds == pytest.approx(before - 5.0)
    for _ in range(9):
        drafter.stretch([sequence], limits)
    assert only.clock.now == began + 15.0, "nobody is asked once that is used up"


def test_random_costs_of_all_kinds_lose_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices, rows and luck change again and again, for two drafters at once."""
    drafter, oracles = with_oracles(monkeypatch, one=(3, 0.2), other=(6, 0.4))
    rng, sequences, clock = np.random.default_rng(4), many(drafter, 2), oracles["one"].clock
    oracles["other"].clock = clock
    lost = total = worst = 0.0
    for _ in range(30):
        for oracle in oracles.values():
            oracle.price, oracle.lengths = float(rng.exponential(0.3)), int(rng.integers(1, 5))
        row = float(rng.exponential(0.3))
        worst = max(worst, 2 * (oracles["one"].price + oracles["other"].price + 9 * row))
        taken, plain = race(drafter, clock, sequences, lambda rows, row=row: 1.0 + row * (rows - 2), 150)
        lost, total = lost + taken - plain, total + plain
    assert lost < c.START + c.SHARE * total + worst


def test_an_adapter_whose_guesses_fail_takes_nobody_elses_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, oracles = with_oracles(monkeypatch, only=(3, 0.3))
    oracle = oracles["only"]

    def questions(number: int, adapter: Adapter | None, right: bool) -> int:
        before, oracle.right = oracle.asked, right
        sequence = ToySequence(number, [1, 2, 3, 4])
        sequence.adapter = adapter  # type: ignore[attr-defined]
        drafter.begin(sequence)
        drafter.observe([read_prompt(sequence)])
        race(drafter, oracle.clock, [sequence], flat, 60)
        drafter.end(number)
        return oracle.asked - before

    bad = Adapter("bad", "", "digest", None)
    for number in range(16):
        last = questions(number, bad, right=False)
    assert last < 3
    assert questions(17, None, right=True) > 30


def test_several_sequences_may_lose_fewer_rounds_at_first() -> None:
    allowances = Allowances()
    starts = [allowances[Load(count, 0).size].rounds for count in (1, 2, 64)]
    assert starts == [c.START, c.START / 2, c.LEAST_START]
