"""The target's states, computed batch by batch with products in bfloat16."""

from __future__ import annotations

import torch
from training_toys import packs, tables, target, weights

from headstart.passes.batch import FINAL_TAP
from headstart_train.computed_states import ComputedStates
from headstart_train.states import TargetStates


def test_they_are_the_backends_states() -> None:
    """All layers, the last one's output and the final norm's; packs of several documents and of unequal lengths."""
    model = target()
    taps = (*range(model.config.num_layers + 1), FINAL_TAP)
    members = sorted(packs(), key=len)[:3]
    assert len({len(pack) for pack in members}) > 1
    wanted = TargetStates(model.backend, tables().head, taps, 0).batch(members)
    found = ComputedStates(model.config, weights(), tables().head, taps, torch.device("cpu")).batch(members)
    for name in ("tokens", "positions", "documents", "answers"):
        assert torch.equal(getattr(found, name), getattr(wanted, name))
    text = wanted.documents >= 0
    for name in ("features", "final"):
        expected, said = getattr(wanted, name)[text], getattr(found, name)[text]
        assert said.dtype == torch.float32
        # Products are rounded to eight bits.
        assert (said - expected).norm() < 0.02 * expected.norm()
    says = wanted.favourites >= 0
    assert torch.equal(found.favourites >= 0, says)
    assert (found.favourites == wanted.favourites)[says].float().mean() > 0.95


def test_nothing_is_kept() -> None:
    states = ComputedStates(target().config, weights(), tables().head, (1,), torch.device("cpu"))
    assert not states.keeps(packs())
    first = states.batch(packs()[:1])
    assert states.computing_seconds > 0
    assert torch.equal(states.batch(packs()[:1]).features, first.features)
