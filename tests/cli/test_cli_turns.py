"""What is said of two ways of decoding that took turns."""

from __future__ import annotations

import pytest

from headstart.cli.turns import Timed, Turns, explained
from headstart.common.machine_load import MachineLoad
from headstart.common.ratio import Ratio

QUIET = MachineLoad(10.0, 2, 2, others=0.02, stolen=0.0, load_average=2.0)
BUSY = MachineLoad(10.0, 2, 2, others=1.3, stolen=0.0, load_average=4.1)


def turns(*seconds: tuple[float, float], tokens: int = 100) -> Turns:
    taken = Turns()
    for fast, slow in seconds:
        taken.add(Timed(tokens, fast, 0.0), Timed(tokens, slow, 0.0))
    return taken


def said(taken: Turns, load: MachineLoad, acceptance: float | None = 0.4) -> str:
    assert taken.ratio is not None
    return "\n".join(explained(taken.ratio, load, acceptance, "ngram"))


def test_the_median_of_the_turns_with_their_spread() -> None:
    assert said(turns((1, 2), (1, 1.8), (1, 2.1)), QUIET) == "Speed-up: 2.00x (1.80 to 2.10 in 3 turns)."


def test_each_turn_is_judged_by_its_neighbour() -> None:
    """A machine that gets slower and slower slows both down."""
    ratio = turns((1, 2), (2, 4), (4, 8), (8, 16)).ratio
    assert ratio == Ratio(2.0, 2.0, 2.0, 4)


def test_one_disturbance_among_many_turns_does_not_decide() -> None:
    ratio = turns(*[(1, 2)] * 6, (5, 2)).ratio
    assert ratio is not None
    assert not ratio.uncertain
    assert ratio.middle == 2.0


def test_what_cannot_be_told_is_not_told() -> None:
    text = said(turns((1, 2), (2, 1.5), (1, 1.9)), BUSY)
    assert "between 0.75x and 2.00x in 3 turns" in text
    assert "too uncertain to name a factor" in text
    assert "Other programs used 1.3 of 2 cores during the measurement (load average 4.1)." in text
    assert "again when they are done" in text


@pytest.mark.parametrize(
    ("load", "acceptance", "reason"),
    [
        (BUSY, 0.1, "Other programs used 1.3 of 2 cores"),
        (QUIET, 0.1, "10% of the guesses were accepted"),
        (QUIET, None, "ngram guessed nothing in this text"),
    ],
)
def test_no_loss_without_its_reason(load: MachineLoad, acceptance: float | None, reason: str) -> None:
    for taken in (turns((2, 1)), turns((2, 1), (2.1, 1)), turns((2, 1), (1, 1.2))):
        assert reason in said(taken, load, acceptance)


def test_a_quiet_machine_whose_speed_changes_is_not_blamed_on_others() -> None:
    text = said(turns((1, 4), (1, 2)), QUIET)
    assert "too uncertain" in text
    assert "not busy with other programs" in text


def test_prefill_is_no_decoding_and_answers_add_up() -> None:
    taken, second = Turns(), Turns()
    taken.add(Timed(10, 3.0, 1.0), Timed(10, 5.0, 1.0))
    taken.add(Timed(10, 3.0, 1.0), Timed(10, 5.0, 1.0))
    second.add(Timed(20, 2.0, 0.0), Timed(20, 8.0, 0.0))
    whole = Turns()
    whole.follow(taken)
    whole.follow(second)
    assert [each.speed for each in whole.speculative] == [30 / 4]
    assert whole.ratio == Ratio(3.0, 3.0, 3.0, 1)
    assert taken.ratio == Ratio(2.0, 2.0, 2.0, 2)


def test_nothing_decoded_is_no_factor() -> None:
    assert turns((1, 1), tokens=0).ratio is None
