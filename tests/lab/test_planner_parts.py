"""A planner without one of its parts says what it says with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.drafting.base import SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning.allowances import Allowance, Load
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.registry import create_drafter
from headstart.errors import ConfigError
from headstart.loading.model import load_model
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.cells_run import Entrant
from headstart_lab.bench.planner_parts import PARTS, named_parts
from headstart_lab.workbench import PLAIN, Workbench

DRAFTERS = "auto:drafters=suffix+recycling"


@pytest.fixture(scope="module")
def bench(tiny_model_dir: Path) -> Workbench:
    return Workbench.of_model(load_model(tiny_model_dir, "bf16"), 2, 200)


def said(bench: Workbench, entrant: Entrant) -> list[list[int]]:
    engine = bench.open(entrant.contender(PlannerParts()))
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    wide = SpeculationParams(tree_nodes=8)
    sequences = [bench.sequence([5 + i, 6, 7, 5 + i, 6, 7, 5 + i], params, wide) for i in range(3)]
    bench.decode(engine, *sequences)
    return [each.output for each in sequences]


@pytest.mark.parametrize("name", PARTS)
def test_texts_stay_the_same(bench: Workbench, name: str) -> None:
    assert said(bench, Entrant(DRAFTERS, PARTS[name])) == said(bench, Entrant(PLAIN))
    assert PARTS[name].lines > 2


def member(name: str) -> Member:
    """Of a planner without this part."""
    parts = PARTS[name].without(PlannerParts())
    return parts.member(create_drafter("suffix", DraftContext(12)), 1)


def test_what_is_taken_out_is_gone() -> None:
    graded, own = member("grades"), member("own-rates")
    rates = graded.own_rates()
    for _ in range(9):
        rates.count(3, True)
    assert len(set(rates.rates)) == 1
    assert rates.rates[0] > 0.5
    shared = own.own_rates()
    for _ in range(9):
        shared.count(3, False)
    assert own.own_rates().rates == shared.rates
    load = Load(1, 0)
    asked, empty = member("allowances"), Allowance(-1.0)
    assert asked.asks(empty, load)
    assert not member("grades").asks(empty, load)
    costs = PARTS["forgetting"].without(PlannerParts()).costs()
    costs.passes.add(1, 0.5)
    for _ in range(600):
        costs.passes.add(8, 1.0)
    assert costs.passes.seconds(1, 1) == [0.5]
    unguarded = PARTS["safeguard"].without(PlannerParts()).safeguard()
    assert not unguarded.allows(load), "plain rounds are timed first"
    for _ in range(3):
        unguarded.decoded(load, [1.0])
    unguarded.speculated(load, 1.0, 100.0, 1.0, 100.0)
    assert unguarded.allows(load)


def test_parts_are_named_or_all() -> None:
    assert [part.name for part in named_parts("grades, safeguard,grades")] == ["grades", "safeguard", "nothing"]
    assert [part.name for part in named_parts("all")] == [*PARTS, "nothing"]
    assert named_parts("") == []
    with pytest.raises(ConfigError, match="did you mean 'grades'"):
        named_parts("grade")


def test_the_planner_itself_has_all_its_parts() -> None:
    assert AutoDrafter.parts == PlannerParts()
