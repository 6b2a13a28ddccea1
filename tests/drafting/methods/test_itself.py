from __future__ import annotations

from dataclasses import replace

import pytest
from model_toys import LayeredToy, model_context
from toys import hashed_logits

from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.methods.auto.itself import gain
from headstart.drafting.planning import constants
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_trials import TriedPass
from headstart.drafting.registry import create_drafter
from headstart.errors import ConfigError
from headstart.passes.runner import ModelRunner

FLAT = [TriedPass(rows, 0.020) for rows in (1, 2, 4, 8, 16)]
STEEP = [TriedPass(rows, 0.020 * rows) for rows in (1, 2, 4, 8, 16)]


def test_a_gain_is_that_of_the_best_chain() -> None:
    assert gain(FLAT, 0.0) == pytest.approx(sum(0.8**depth for depth in range(9)))
    # Two guesses at a third of a pass each.
    assert gain(FLAT, 0.020 / 3) == pytest.approx(
        max(sum(0.8**d for d in range(k + 1)) / (1 + k / 3) for k in range(9))
    )
    assert gain(FLAT, 0.020) == 1.0
    assert gain(STEEP, 0.001) == 1.0


@pytest.mark.parametrize(
    ("bits", "least", "cost", "taken"),
    [(16.0, 0.0, 0.0, True), (4.5, 0.0, 0.0, False), (16.0, 10.0, 0.0, False), (16.0, 0.0, 10.0, False)],
    ids=["pays", "few bits already", "short passes", "too dear"],
)
def test_the_model_guesses_for_itself_where_that_pays_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, bits: float, least: float, cost: float, taken: bool
) -> None:
    monkeypatch.setattr(constants, "ITSELF_SECONDS", least)
    monkeypatch.setattr("headstart.drafting.methods.self_bits.drafter.SelfDrafter.token_seconds", lambda self: cost)
    trials = [TriedPass(1, 0.02), TriedPass(9, 0.02)]
    monkeypatch.setattr(AutoDrafter, "parts", PlannerParts(trials=lambda runner: trials))
    target = LayeredToy(10, hashed_logits(10), hashed_logits(10))
    target.layer_bits = bits  # type: ignore[attr-defined]
    told: list[str] = []
    context = replace(model_context(ModelRunner(target, 512, block_size=8), {}), tell=told.append)
    drafter = create_drafter("auto", context)
    assert isinstance(drafter, AutoDrafter)
    assert ("SelfDrafter" in [type(member.drafter).__name__ for member in drafter._members]) == taken
    assert any("itself in few bits" in sentence for sentence in told) == taken


def test_no_room_for_it_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ITSELF_SECONDS", 0.0)
    target = LayeredToy(10, hashed_logits(10), hashed_logits(10))
    target.layer_bits = 16.0  # type: ignore[attr-defined]

    def no_room(bits: int | str, layers: int | None) -> object:
        raise ConfigError("there is no room")

    context = model_context(ModelRunner(target, 512, block_size=8), {})
    create_drafter("auto", replace(context, lend_itself=no_room))  # type: ignore[arg-type]
