"""Rows of prompts beside sequences that decode, by what rows cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from toys import ToyBackend, hashed_logits, toy_engine, toy_sequence

from headstart.drafting.planning.pass_costs import PassCosts
from headstart.engine.chunks import chunk_rows
from headstart.engine.schedule import Limits
from headstart.sampling.params import SamplingParams

_MOST = 512


def _proportional(rows: int) -> float:
    return 1.0 + rows


def _free(rows: int) -> float:
    return 100.0 + rows / 100


def _in_panels(rows: int) -> float:
    """Each panel reads the weights once more."""
    return 100.0 * math.ceil(rows / 256) + rows


@pytest.mark.parametrize("decoding", [1, 16, 60])
@pytest.mark.parametrize(("seconds", "most"), [(_proportional, 130), (_free, _MOST), (_in_panels, _MOST)])
def test_chunks_are_as_short_as_costs_nothing(decoding: int, seconds: Callable[[int], float], most: int) -> None:
    """Whatever was timed before: the chunks that are read, and the ends of prompts."""
    costs, passes = PassCosts(), list[int]()
    for number in range(60):
        chunk = chunk_rows(costs, decoding, _MOST, 0.0)
        passes.append(decoding + chunk)
        rows = decoding + (chunk if number % 3 else 1 + 37 * number % chunk)
        costs.add(rows, seconds(rows))
    assert passes[0] == _MOST
    assert max(passes[-10:]) <= most
    dearest = max(seconds(rows) / rows for rows in passes[-10:])
    assert dearest <= 1.3 * min(seconds(rows) / rows for rows in range(decoding + 64, _MOST + 1))


def test_chunks_never_pass_the_bound() -> None:
    costs = PassCosts()
    for rows in (1, 8, 20):
        costs.add(rows, float(rows))
        assert chunk_rows(costs, 12, 20, 0.0) == 8
        assert chunk_rows(costs, 20, 20, 0.0) == 1


class _Told(PassCosts):
    """Of passes that were timed elsewhere."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        super().__init__()
        for rows in (1, 64, 128, 256, _MOST):
            super().add(rows, seconds(rows))

    def add(self, rows: int, seconds: float, row_keys: float = 0.0) -> None: ...


@pytest.mark.parametrize(("seconds", "passes"), [(_proportional, 8), (_free, 1)])
def test_a_long_prompt_stalls_others_no_longer_than_it_must(seconds: Callable[[int], float], passes: int) -> None:
    logits_of = hashed_logits(12, 8, order=4)
    engine = toy_engine(ToyBackend(12, logits_of), limits=Limits(max_rows=_MOST, max_context=1024))
    engine.costs = _Told(seconds)
    params = SamplingParams(temperature=0, max_tokens=200)
    speaker = toy_sequence(engine, [1, 2, 3], sequence_id=0, params=params)
    engine.add(speaker)
    while not speaker.num_output:
        engine.step()
    reader = toy_sequence(engine, [4] * 450, sequence_id=1, params=params)
    engine.add(reader)
    said = speaker.num_output
    while not reader.num_output:
        engine.step()
    assert speaker.num_output - said == passes + 1
