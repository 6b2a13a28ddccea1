"""Models of Hugging Face directories, as the core opens them (``headstart.loading.describing.ForeignCode``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from headstart.common.enumerations import Precision
from headstart.common.memory import require_room
from headstart.errors import ConfigError
from headstart.loading.reading import Reading
from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.models.derived import DerivedTensors
from headstart.passes.backend import Backend
from headstart_integrations.transformers import description

_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


def missing() -> str | None:
    """Why transformers cannot be used here; None: it can."""
    return description.missing()


def opened(checkpoint: Checkpoint, reading: Reading) -> TransformersModel:
    """A model of a directory.

    Raises:
        CheckpointError: transformers does not know such a model either, it runs code of its own that nobody has
            trusted, or it is no decoder.
    """
    settings = description.read_config(checkpoint.metadata, checkpoint.path, checkpoint.name, reading.trust_remote_code)
    sizes = description.described(settings, checkpoint.metadata, checkpoint.name)
    return TransformersModel(checkpoint, reading, sizes, settings)


@dataclass(frozen=True)
class TransformersModel:
    """A model that is not loaded yet."""

    checkpoint: Checkpoint
    reading: Reading
    config: ModelConfig
    settings: Any
    """transformers' configuration."""

    def load(self, precision: Precision, device: torch.device) -> tuple[Backend, str]:
        """Passes by transformers' own code, and in which way.

        Raises:
            CheckpointError: the weights are damaged, or not to be decoded with.
            ConfigError: the precision cannot be had so, or memory is short.
        """
        from headstart_integrations.transformers.backend import load_transformers

        usual = Precision.BF16 if device.type == "cuda" else Precision.FP32
        chosen = usual if precision is Precision.AUTO else precision
        checkpoint, trusted = self.checkpoint, self.reading.trust_remote_code
        if chosen not in _DTYPES:
            raise ConfigError(
                f"precision is {chosen.value!r}, which transformers' code, by which {checkpoint.name} is run, does not "
                "compute; use bf16 or fp32."
            )
        dtype = _DTYPES[chosen]
        derived = isinstance(checkpoint.weights, DerivedTensors)
        size = sum(math.prod(shape) for shape in checkpoint.shapes().values()) * dtype.itemsize
        # What is made of a file is handed over as a whole.
        require_room(
            2 * size if derived else size,
            f"{checkpoint.name} in {chosen.value}",
            "choose a smaller model, or precision bf16",
        )
        weights = _own_weights(checkpoint, dtype) if derived else None
        backend = load_transformers(self.settings, self.config, checkpoint.path, dtype, device, trusted, weights)
        return backend, backend.remark


def _own_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """By their names, where they are not simply those of the files."""
    tensors = {name: checkpoint.read(name) for name in checkpoint.shapes()}
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
