"""What changes a head's parameters: Muon for the matrices between hidden states, AdamW for the rest."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headstart.errors import ConfigError
from headstart_train.choices import OptimiserName
from headstart_train.decoder.trainable import TrainableLinear
from headstart_train.objectives.objective import trainable

_SAY_TOKENS = ("lm_head", "heads", "markov_head")
"""Modules whose matrices end in tokens: each row is a token of its own, which AdamW serves better."""

_MUON_RATE = 2.0
"""Muon's learning rate over AdamW's (docs/experiments/training.md, 0027)."""


class Optimiser:
    """Muon takes the momentum of a matrix to the nearest orthogonal one, so that directions which few gradients show
    are learnt as fast as the others (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon); scaled to the
    size of AdamW's steps (Liu et al. 2025, arXiv:2502.16982, section 2.2).

    Args:
        head: its trainable parameters are changed.
        name: "adamw" for all of them, or "muon" as above.
        lr: AdamW's full learning rate; Muon's is twice that.
        weight_decay: decoupled.

    Raises:
        ConfigError: this PyTorch has no Muon.
    """

    def __init__(self, head: nn.Module, name: OptimiserName, lr: float, weight_decay: float) -> None:
        chosen = _hidden_matrices(head) if name == "muon" else set()
        matrices = [each for each in trainable(head) if each[0] in chosen]
        others = [each for each in trainable(head) if each[0] not in chosen]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []
        if matrices:
            if not hasattr(torch.optim, "Muon"):
                raise ConfigError(
                    f"PyTorch {torch.__version__} has no Muon; install 2.9 or newer, or choose the optimiser adamw."
                )
            muon = torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            self._parts.append((muon, _MUON_RATE * lr))
        if others:
            self._parts.append((torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=weight_decay), lr))

    def step(self, share: float) -> None:
        """Change the parameters by their gradients, at this share of the learning rate; gradients are gone then."""
        for part, lr in self._parts:
            for group in part.param_groups:
                group["lr"] = lr * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """What it remembers, by parameter: ``<parameter>/<what>``."""
        return {
            f"{name}/{what}": value
            for part, _ in self._parts
            for group in part.param_groups
            for name, parameter in zip(group["param_names"], group["params"], strict=True)
            for what, value in part.state[parameter].items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state()`` of an optimiser of the same head and name."""
        remembered: dict[str, dict[str, Tensor]] = {}
        for key, tensor in state.items():
            name, _, what = key.rpartition("/")
            remembered.setdefault(name, {})[what] = tensor
        for part, _ in self._parts:
            for group in part.param_groups:
                for name, parameter in zip(group["param_names"], group["params"], strict=True):
                    if name in remembered:
                        # The step count stays where the optimiser wants it, on the CPU.
                        part.state[parameter] = {
                            what: tensor if what == "step" else tensor.to(parameter.device)
                            for what, tensor in remembered[name].items()
                        }


def _hidden_matrices(head: nn.Module) -> set[str]:
    """Names of the weights of linear layers whose outputs are states, not tokens."""
    return {
        f"{name}.weight"
        for name, module in head.named_modules()
        if isinstance(module, nn.Linear | TrainableLinear) and name.split(".")[0] not in _SAY_TOKENS
    }
