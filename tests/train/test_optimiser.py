"""Which parameters are changed by what, and that nothing is forgotten between two runs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from training_toys import target

from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import ConfigError
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_train.first_steps.eagle import eagle_config
from headstart_train.optimiser import Optimiser


def eagle() -> EagleHead:
    torch.manual_seed(0)
    return EagleHead(eagle_config(target().config, "eagle3"))


def shake(head: nn.Module, seed: int) -> None:
    """Gradients that follow from the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in head.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_muon_changes_matrices_between_states_and_adamw_what_says_tokens() -> None:
    head = eagle()
    optimiser = Optimiser(head, "muon", 1e-3, 0.0)
    shake(head, 1)
    optimiser.step(1.0)
    remembered: dict[str, set[str]] = {}
    for key in optimiser.state():
        name, _, what = key.rpartition("/")
        remembered.setdefault(name, set()).add(what)
    by_muon = {name for name, what in remembered.items() if what == {"momentum_buffer"}}
    assert remembered.keys() == dict(head.named_parameters()).keys()
    assert by_muon == {
        name for name, parameter in head.named_parameters() if parameter.dim() == 2 and name != "lm_head.weight"
    }


def test_every_direction_of_a_matrix_is_changed_alike() -> None:
    """Muon's law: the update's singular values are near one another, however unlike the gradient's are."""
    heads = ParallelHeads(ParallelConfig("medusa", 32, 50, 50, slots=1))
    optimiser = Optimiser(heads, "muon", 1e-3, 0.0)
    matrix = heads.get_parameter("blocks.0.0.linear.weight")
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(32, 32)).Q for _ in range(2))
    sizes = torch.logspace(0, -1, 32)
    matrix.grad = left @ torch.diag(sizes) @ right
    before = matrix.detach().clone()
    optimiser.step(1.0)
    changed = torch.linalg.svdvals(before - matrix.detach())
    assert changed.max() / changed.min() < 3 < sizes.max() / sizes.min()


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_state_that_is_loaded_goes_on_as_if_never_saved(name: str) -> None:
    whole, halves = eagle(), eagle()
    first = Optimiser(whole, name, 1e-2, 0.0)  # type: ignore[arg-type]
    second = Optimiser(halves, name, 1e-2, 0.0)  # type: ignore[arg-type]
    for optimiser, head in ((first, whole), (second, halves)):
        shake(head, 1)
        optimiser.step(1.0)
    third = Optimiser(halves, name, 1e-2, 0.0)  # type: ignore[arg-type]
    third.load_state(second.state())
    for optimiser, head in ((first, whole), (third, halves)):
        shake(head, 2)
        optimiser.step(0.5)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), halves.parameters(), strict=True))


def test_a_share_of_the_rate_changes_by_that_share() -> None:
    changes = []
    for share in (1.0, 0.25):
        head = eagle()
        before = [parameter.detach().clone() for parameter in head.parameters()]
        optimiser = Optimiser(head, "muon", 1e-3, 0.0)
        shake(head, 1)
        optimiser.step(share)
        changes.append([parameter.detach() - old for parameter, old in zip(head.parameters(), before, strict=True)])
    for full, quarter in zip(*changes, strict=True):
        torch.testing.assert_close(quarter, full / 4, rtol=1e-3, atol=1e-6)


def test_a_torch_without_muon_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    Optimiser(eagle(), "adamw", 1e-3, 0.0)
    with pytest.raises(ConfigError, match="choose the optimiser adamw"):
        Optimiser(eagle(), "muon", 1e-3, 0.0)
