"""The two ways to compute a head's unrolled steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from training_toys import packs, tables, target

from headstart.drafting.methods.eagle.head import EagleHead
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.objectives import unrolled
from headstart_train.objectives.eagle import EagleObjective
from headstart_train.objectives.unrolled_attention import ByPack
from headstart_train.states import TargetStates

VOCAB = 259


def lesson(slots: int, layers: int, count: int, windows: tuple[int, ...] = ()) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss and its gradients."""
    torch.manual_seed(1)
    config = eagle_config(target().config, num_layers=layers, slots=slots, mask_token_id=1)
    head = EagleHead(replace(config, windows=windows))
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch = TargetStates(target().backend, tables().head, head.config.taps, 0).batch(packs()[:count])
    loss = EagleObjective(head, tables(), torch.arange(VOCAB), steps=3, depth=3).loss(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), {name: each.grad for name, each in head.named_parameters() if each.grad is not None}


@pytest.mark.parametrize(
    ("slots", "layers", "windows"), [(0, 1, ()), (0, 2, ()), (4, 1, ()), (0, 1, (6,)), (0, 2, (5, 0)), (4, 1, (7,))]
)
@pytest.mark.parametrize("count", [1, 3])
def test_packs_at_once_teach_what_single_documents_teach(
    slots: int, layers: int, windows: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, gradients = lesson(slots, layers, count, windows)
    used: list[type] = []

    class Told(ByPack):
        def __init__(self, *args: object) -> None:
            used.append(ByPack)
            super().__init__(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(unrolled, "ByDocument", Told)
    at_once, its_gradients = lesson(slots, layers, count, windows)
    assert used
    torch.testing.assert_close(at_once, loss, atol=1e-5, rtol=1e-5)
    assert its_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(its_gradients[name], gradient, atol=1e-5, rtol=1e-3, msg=name)
