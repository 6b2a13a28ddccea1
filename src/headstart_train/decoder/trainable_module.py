"""A multi-token module that gradients flow through."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headstart.errors import ConfigError
from headstart.models.config import ModelConfig
from headstart.models.multi_token_modules import MultiTokenModule, MultiTokenModules
from headstart_train.decoder.trainable import TrainableLayer, TrainableLinear, TrainableNorm, require_trainable


class TrainableModule(nn.Module):
    """One module in float32, unrolled on its own states: what ``training.unrolled`` asks of a head.

    Args:
        modules: a single one, copied.
        device: where it runs.

    Raises:
        ConfigError: gradients are not for a layer of this kind.
    """

    def __init__(self, modules: MultiTokenModules, device: torch.device | str = "cpu") -> None:
        super().__init__()
        (own,), config = modules.modules, modules.config
        require_trainable_module(config)
        if modules.feeds_unnormed:
            raise ConfigError(
                f"{config.name or config.family} has modules that read states before the last norm, which none is "
                "trained for; train a head that reads the target's states alone, as EAGLE's do."
            )
        layer = config.layers[0]

        def keep(tensor: Tensor) -> nn.Parameter:
            return nn.Parameter(tensor.to(device, torch.float32, copy=True))

        self.config, self._hidden_first = config, modules.hidden_first
        self._scale = config.score_scale * config.head_dim**0.5
        self.layers = nn.ModuleList([TrainableLayer(config, layer, own.layer, keep)])
        self.embedding_norm = TrainableNorm(config, own.embedding_norm, keep)
        self.hidden_norm = TrainableNorm(config, own.hidden_norm, keep)
        self.final_norm = TrainableNorm(config, own.final_norm, keep)
        self.projection = TrainableLinear(own.projection, keep)

    def fuse(self, features: Tensor) -> Tensor:
        """It reads the target's states after its final norm as they are,"""
        return features

    def feed_back(self, output: Tensor) -> Tensor:
        """and its own."""
        return output

    def forward(
        self,
        embeddings: Tensor,
        states: Tensor,
        rotate: Callable[[Tensor], Tensor],
        attend: Callable[[int, Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Tokens and the states before them, [row, hidden] each -> states after the module's last norm."""
        parts = [self.embedding_norm(embeddings), self.hidden_norm(states)]
        read = self.projection(torch.cat(parts[::-1] if self._hidden_first else parts, dim=-1))
        (layer,) = self.layers

        def turned(rope: int, heads: Tensor) -> Tensor:
            return rotate(heads)

        def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(0, q * self._scale, k, v)

        normed: Tensor = self.final_norm(layer(read, turned, attended))
        return normed

    @property
    def weights(self) -> MultiTokenModule:
        """What was learnt."""
        (layer,) = self.layers
        assert isinstance(layer, TrainableLayer)
        return MultiTokenModule(
            embedding_norm=self.embedding_norm.weights,
            hidden_norm=self.hidden_norm.weights,
            final_norm=self.final_norm.weights,
            projection=self.projection.weights,
            layer=layer.weights,
        )


def require_trainable_module(config: ModelConfig) -> None:
    """Refuse a module that gradients are not for; ``config``: with the module's layer in place of the model's.

    Raises:
        ConfigError: what it has of that kind.
    """
    require_trainable(config)
    if any(layer.window is not None for layer in config.layers) or config.attention.softcap is not None:
        raise ConfigError(
            f"a multi-token module of {config.name or config.family} has a window or a bound on its scores, which "
            "none is trained through; train a head of another kind, as eagle3."
        )
