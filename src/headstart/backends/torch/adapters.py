"""Adapters in passes of PyTorch: matrices of a decoder that some rows of a pass change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from headstart.backends.torch.channels import Experts, MlpAndExperts
from headstart.backends.torch.compressed import CompressedAttention
from headstart.backends.torch.decoder import DecoderLayer
from headstart.backends.torch.linear import Linear
from headstart.backends.torch.mixers import LatentAttention, TwoMixers
from headstart.models.adapters import AdapterWeights
from headstart.models.linear_weights import LinearWeights
from headstart.passes.batch import PassBatch


class TorchAdapter:
    """The pairs of matrices by what they change, in float32."""

    def __init__(self, weights: AdapterWeights, device: torch.device) -> None:
        self.changes = {
            key: tuple(Linear(LinearWeights(each), torch.float32, device) for each in pair)
            for key, pair in weights.changes.items()
        }


@contextmanager
def adapting(layers: Sequence[DecoderLayer], batch: PassBatch, device: torch.device) -> Iterator[None]:
    """Have the layers changed for the rows of each sequence by its adapter, while a pass runs."""
    owners = np.repeat(np.arange(batch.num_sequences), np.diff(batch.row_starts))
    changed = set[Linear]()
    try:
        for adapter in {each for each in batch.adapters or () if isinstance(each, TorchAdapter)}:
            whose = [index for index, each in enumerate(batch.adapters or ()) if each is adapter]
            rows = torch.from_numpy(np.flatnonzero(np.isin(owners, whose))).to(device)
            for (index, place), (down, up) in adapter.changes.items():
                linear = _linears(layers[index])[place] if index < len(layers) else None
                if linear is not None:
                    linear.changes.append((rows, down, up))
                    changed.add(linear)
        yield
    finally:
        for linear in changed:
            linear.changes.clear()


def _linears(layer: DecoderLayer) -> tuple[Linear | None, ...]:
    """As ``models.adapters.adaptable`` has them."""
    mixer = layer.mixer.attention if isinstance(layer.mixer, TwoMixers) else layer.mixer
    dense = layer.channel.mlp if isinstance(layer.channel, MlpAndExperts) else layer.channel
    dense = dense.shared if isinstance(dense, Experts) else dense
    first = mixer.down if isinstance(mixer, LatentAttention | CompressedAttention) else getattr(mixer, "input", None)
    named = ((mixer, "output"), (dense, "up"), (dense, "down"), (mixer, "gate"))
    return first, *(getattr(part, name, None) for part, name in named)
