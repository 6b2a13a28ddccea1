"""When a drafter is said to be of no use, and when not."""

from __future__ import annotations

import pytest

from headstart.drafting import DEFAULT_DRAFTER
from headstart.engine.outputs import SequenceStats
from headstart.engine.usefulness import Usefulness, UsefulnessWatch


def stats(guessed: int, right: int, tokens: int = 100, rounds: int = 80, draft: float = 0.1) -> SequenceStats:
    return SequenceStats(
        tokens=tokens,
        rounds=rounds,
        drafted_per_position=[guessed],
        accepted_per_position=[right],
        draft_seconds=draft,
        target_seconds=1.0,
    )


def hint(drafter: str, *answers: SequenceStats, speedup: float | None = None) -> str | None:
    usefulness = Usefulness(drafter)
    for answer in answers:
        usefulness.add(answer)
    return usefulness.hint(speedup)


def test_what_is_never_right_is_said_with_its_likely_cause() -> None:
    head, copy = hint("eagle3", stats(60, 1)), hint("ngram", stats(60, 0))
    assert head is not None
    assert copy is not None
    assert "eagle3 guessed right in 1 of 60 rounds: its head or model is untrained" in head
    assert "it cannot foresee these texts" in copy
    assert f"--drafter {DEFAULT_DRAFTER}" in head


def test_what_nobody_has_taught_is_said_soon_where_it_loses() -> None:
    """Rates of five guesses a round from a third of the layers, which take longer than the round's own pass."""
    lost, won = stats(9, 1, tokens=10, rounds=9, draft=1.7), stats(9, 8, tokens=40, rounds=9, draft=1.7)
    said = hint("early-exit", lost)
    assert said is not None
    assert "makes decoding slower: a round brings 1.11 tokens and takes at least 2.70 times" in said
    assert "it runs some of the target's own layers, which nobody has taught to guess" in said
    assert hint("early-exit", won) is None
    assert hint("draft-model", lost) is None  # it may have a model


def test_answers_add_up_and_a_few_rounds_say_nothing() -> None:
    assert hint("ngram", stats(10, 0)) is None
    assert hint("ngram", stats(10, 0), stats(10, 0), stats(10, 0)) is not None
    assert hint("ngram", SequenceStats(tokens=100, rounds=100)) is None
    assert hint("ngram") is None


@pytest.mark.parametrize(
    ("draft", "slower"),
    [(0.1, False), (0.3, False), (0.5, True), (2.0, True)],
)
def test_drafting_that_takes_longer_than_it_saves(draft: float, slower: bool) -> None:
    said = hint("draft-model", stats(80, 20, draft=draft))
    assert (said is not None) == slower
    assert said is None or "makes decoding slower: a round brings 1.25 tokens" in said


def test_a_measured_speed_decides() -> None:
    assert hint("eagle3", stats(80, 20, draft=2.0), speedup=1.2) is None
    said = hint("eagle3", stats(80, 40), speedup=0.43)
    assert said is not None
    assert "0.43 times as fast" in said
    blink = SequenceStats(tokens=100, rounds=80, drafted_per_position=[80], accepted_per_position=[40])
    assert hint("eagle3", blink, speedup=0.43) is None


def test_the_default_drafter_rests_by_itself() -> None:
    assert hint(DEFAULT_DRAFTER, stats(80, 0)) is None


def test_a_class_of_the_callers_own_is_judged_too() -> None:
    said = hint("MyDrafter", stats(80, 0))
    assert said is not None
    assert said.startswith("MyDrafter guessed right in 0 of 80 rounds")


def test_a_running_engine_says_it_once_for_each_drafter() -> None:
    watch = UsefulnessWatch()
    said = [watch.add(name, stats(20, 0)) for name in ("ngram", "suffix", "ngram", "ngram", "suffix", None)]
    assert [text is not None for text in said] == [False, False, True, False, True, False]
