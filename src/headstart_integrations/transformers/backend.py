"""A ``Backend`` that runs any decoder through transformers' own modelling code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headstart.backends.torch.device import avoid_attention_plans, finish
from headstart.backends.torch.kit import TorchKit
from headstart.common.memory import is_lack_of_memory
from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.passes.backend import BackendKit
from headstart.passes.batch import KVStorage, PassBatch, PassOutput
from headstart_integrations.transformers.calls import Caller
from headstart_integrations.transformers.description import model_class
from headstart_integrations.transformers.storage import TransformersStorage
from headstart_integrations.transformers.trial import find_way

_NAMES = {torch.float32: "transformers-fp32", torch.bfloat16: "transformers-bf16"}


class TransformersBackend:
    """Passes by transformers, in the quickest way that keeps the model's logits (``trial.find_way``).

    Args:
        model: in evaluation mode, on its device.
        config: its sizes; ``config`` of the backend says how many logits it has.
        kit: what runs beside the passes; None: PyTorch, on the same device.

    Raises:
        CheckpointError: no way of decoding with this model keeps its logits.
    """

    exact_rows = False
    finds_best = False
    opens_layers = False

    def __init__(self, model: Any, config: ModelConfig, kit: BackendKit | None = None) -> None:
        self.device: torch.device = model.device
        avoid_attention_plans(self.device)
        self.name = _NAMES.get(model.dtype, f"transformers-{model.dtype}".replace("torch.", ""))
        self.kit: BackendKit = kit or TorchKit(self.device)
        self._model = model
        call = Caller(model, config.num_layers, config.vocab_size)
        with _quiet(), torch.inference_mode():
            self._way, self.remark = find_way(call, config.name)
        """How its passes are run, in words."""
        self.config = replace(config, vocab_size=call.vocab_size)

    @property
    def nbytes(self) -> int:
        tensors = {tensor.data_ptr(): tensor.nbytes for tensor in (*self._model.parameters(), *self._model.buffers())}
        return sum(tensors.values())

    def allocate_cache(self, num_blocks: int, block_size: int, num_states: int = 0) -> KVStorage:
        return TransformersStorage(self._way.layers, num_blocks, block_size, self.device)

    @torch.inference_mode()
    def forward(self, batch: PassBatch, storage: KVStorage) -> PassOutput:
        """Run one pass.

        Raises:
            TypeError: the storage is another backend's.
            ValueError: the pass asks for a part of the model.
        """
        if not isinstance(storage, TransformersStorage):
            raise TypeError(f"storage is a {type(storage).__name__}; allocate it with this backend")
        if batch.num_layers is not None or batch.inputs is not None:
            raise ValueError("transformers' models run whole, and read tokens")
        called = self._way.forward(batch, storage)
        finish(self.device)
        return PassOutput(called.logits, called.hidden)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own bars and reports: what matters of them is said here."""
    from transformers.utils import logging

    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def load_transformers(
    config: Any,
    sizes: ModelConfig,
    path: Path,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool = False,
    weights: Mapping[str, torch.Tensor] | None = None,
) -> TransformersBackend:
    """Read a directory's model with transformers.

    Args:
        config: as ``description.read_config`` gives it.
        weights: in place of those in the directory.

    Raises:
        CheckpointError: its weights are missing, damaged, or not those that its configuration promises; or there is no
            way of decoding with it.
    """
    made = model_class(config, trust_remote_code)
    settings: dict[str, Any] = {"config": config, "dtype": dtype, "local_files_only": True, "output_loading_info": True}
    try:
        with _quiet():
            if weights is None:
                model, found = made.from_pretrained(path, trust_remote_code=trust_remote_code, **settings)
            else:
                with torch.device("meta"):
                    kind = type(made.from_config(config, trust_remote_code=trust_remote_code))
                model, found = kind.from_pretrained(None, state_dict=dict(weights), **settings)
    # Whatever a model's own code, or a damaged file, makes of it.
    except Exception as error:
        if is_lack_of_memory(error):
            raise
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"model {sizes.name!r} cannot be loaded by transformers ({reason:.300}); fetch the model again."
        ) from error
    faults = [
        f"{word} {', '.join(sorted(map(str, found[key]))[:4])}"
        for key, word in (("missing_keys", "lacks"), ("mismatched_keys", "has mis-shaped"))
        if found.get(key)
    ]
    if faults:
        raise CheckpointError(
            f"model {sizes.name!r} does not hold what its configuration promises: it {' and '.join(faults)}; fetch or "
            "convert the model again."
        )
    return TransformersBackend(model.to(device).eval(), sizes)
