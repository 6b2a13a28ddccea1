"""Several drafters in one engine, and what happens when one of them breaks."""

from __future__ import annotations

import logging

import pytest
from toys import ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, SpeculationParams, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.engine.engine import Engine
from headstart.engine.pool import MAX_FAULTS, DrafterPool
from headstart.engine.schedule import Limits
from headstart.errors import RequestError
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner

VOCAB = 12


class Broken:
    """Fails where it is told to."""

    needs = TargetSignals()

    def __init__(self, where: str) -> None:
        self.where = where
        self.begun = 0

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise ZeroDivisionError(where)

    def begin(self, sequence: SequenceView) -> None:
        self.begun += 1
        self._fail("begin")

    def propose(self, sequences: list[SequenceView], budgets: list[DraftBudget]) -> list[DraftTree]:
        self._fail("propose")
        if self.where == "too many nodes":
            return [DraftTree.from_paths([[1] * (budget.nodes + 1)], budget.nodes + 1) for budget in budgets]
        return [DraftTree.from_paths([[1]], 1) if budget.nodes else DraftTree.empty() for budget in budgets]

    def observe(self, outcomes: list[RoundOutcome]) -> None:
        self._fail("observe")

    def end(self, sequence_id: int) -> None:
        self._fail("end")


def pool_engine(tolerant: bool, **drafters: object) -> Engine:
    backend = ToyBackend(VOCAB, hashed_logits(VOCAB, order=2, scale=3.0))
    runner = ModelRunner(backend, 4096, 8)
    context = DraftContext(vocab_size=VOCAB, runner=runner)
    built = {name: create_drafter(name, context) if drafter is None else drafter for name, drafter in drafters.items()}
    return Engine(runner, DrafterPool(built, next(iter(drafters)), tolerant), Limits())  # type: ignore[arg-type]


def plain(prompt: list[int]) -> list[int]:
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB, order=2, scale=3.0)))
    return run_all(engine, [toy_sequence(engine, prompt)])[0]


def test_each_request_is_drafted_for_by_the_drafter_it_names() -> None:
    engine = pool_engine(False, ngram=None, recycling=None, random=None, none=None)
    wishes = [SpeculationParams(drafter=name) for name in engine.drafters.drafters] + [SpeculationParams()]
    sequences = [toy_sequence(engine, [1, 2, 1, 2], sequence_id=i, speculation=wish) for i, wish in enumerate(wishes)]
    assert run_all(engine, sequences) == [plain([1, 2, 1, 2])] * len(wishes)
    drafted = dict(zip([*engine.drafters.drafters, "default"], [s.stats.drafted for s in sequences], strict=True))
    assert drafted["none"] == 0
    assert min(drafted["ngram"], drafted["recycling"], drafted["random"]) > 0
    assert drafted["default"] == drafted["ngram"]


def test_an_unknown_drafter_is_refused_at_the_edge() -> None:
    engine = pool_engine(False, ngram=None, suffix=None)
    with pytest.raises(RequestError, match="drafter 'eagle' is not one of this engine's: ngram, suffix"):
        engine.add(toy_sequence(engine, [1], speculation=SpeculationParams(drafter="eagle")))
    assert engine.idle


@pytest.mark.parametrize("where", ["begin", "propose", "observe", "end", "too many nodes"])
def test_a_broken_drafter_costs_speculation_and_nothing_else(where: str, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken(where)
    engine = pool_engine(True, broken=broken, ngram=None)
    wishes = [SpeculationParams(drafter=name) for name in ("broken", "ngram", "broken")]
    sequences = [toy_sequence(engine, [3, 2, 1], sequence_id=i, speculation=wish) for i, wish in enumerate(wishes)]
    with caplog.at_level(logging.ERROR):
        assert run_all(engine, sequences) == [plain([3, 2, 1])] * 3
    assert "drafter broken failed" in caplog.text
    assert sequences[1].stats.drafted > 0
    assert engine.drafters.faults["broken"] >= 1
    assert engine.drafters.faults["ngram"] == 0


def test_a_drafter_that_keeps_failing_is_asked_no_more() -> None:
    broken = Broken("propose")
    engine = pool_engine(True, broken=broken)
    for i in range(MAX_FAULTS + 3):
        run_all(engine, [toy_sequence(engine, [1, 2], sequence_id=i)])
    assert broken.begun == MAX_FAULTS


def test_without_tolerance_a_fault_is_seen() -> None:
    engine = pool_engine(False, broken=Broken("propose"))
    with pytest.raises(ZeroDivisionError):
        run_all(engine, [toy_sequence(engine, [1, 2])])
