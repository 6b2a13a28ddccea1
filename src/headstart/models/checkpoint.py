"""Opening a model by alias, path or hub id.

Nothing is computed here and nothing of the model's architecture is known: a checkpoint is named tensors and
plain metadata, checked as far as the files alone allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.derived import OpenWeights
from headstart.models.files import WeightsIdentity, local_path, read_json
from headstart.models.gguf_file import GgufFile
from headstart.models.gguf_nvfp4 import with_nvfp4
from headstart.models.gguf_split import SplitGguf
from headstart.models.locating import has_safetensors, locate, require_model
from headstart.models.lora import with_adapter
from headstart.models.metadata_tensors import with_metadata_tensors
from headstart.models.pickled_files import PickledFiles, has_pickled_files
from headstart.models.quantised.opening import dequantised, quantised_by
from headstart.models.safetensors_files import SafetensorsFiles
from headstart.models.stored import StoredTensor

_OVERRIDDEN = (
    *("eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
    *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens"),
    *("max_initial_timestamp_index", "alignment_heads"),
)
"""Entries of ``config.json`` that ``generation_config.json`` overrides, as in transformers' generate."""
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True)
class Checkpoint:
    """An open model; a ``TensorSource``, plus what else its files say."""

    kind: Literal["hf", "gguf"]
    name: str
    """What the caller asked for: alias, path or hub id."""
    path: Path
    """The directory ("hf") or file ("gguf") on disk."""
    metadata: Mapping[str, Any]
    """"hf": ``config.json``, some of its entries (``eos_token_id`` ...) overridden by ``generation_config.json`` where
    that has them (as transformers' generate does). "gguf": the file's key-value pairs as plain Python values."""
    weights: OpenWeights

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, in torch order."""
        return self.weights.shapes()

    def read(self, name: str, index: int | None = None) -> Tensor:
        """One tensor in its stored dtype, quantised blocks dequantised to float32; or the one numbered ``index`` of
        those that are stacked in it.

        Raises:
            CheckpointError: there is no such tensor, or it cannot be read.
        """
        return self.weights.read(name, index)

    def stored(self, name: str) -> StoredTensor:
        """One tensor as the file holds it; nothing is read.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self.weights.stored(name)

    def stored_bits(self, name: str) -> float:
        """What a weight of this tensor takes in the file."""
        return self.weights.stored_bits(name)

    @property
    def quantization(self) -> str | None:
        """What its matrices are quantised by: "gguf", or what a folder's settings say; None: they are not."""
        return "gguf" if self.kind == "gguf" else quantised_by(self.weights, self.metadata, self.path)

    def digest(self) -> str:
        """Identity of the weights, 64 hexadecimal digits, independent of sharding and file metadata.

        SHA-256 over names, types, shapes and samples (see ``models.files.WeightsDigest``): what a trained head
        records of its target.
        """
        return self.weights.digest()

    def identity(self) -> WeightsIdentity:
        """The same, and of which files: no other weights have it, however little they differ."""
        return WeightsIdentity(self.digest(), self.weights.stamps)


def open_checkpoint(model: str | Path, revision: str | None = None, lora: str | Path | None = None) -> Checkpoint:
    """Open the model that ``model`` names.

    ``model``: an alias (``headstart.models.aliases``), a Hugging Face directory, a ``.gguf`` file, or a hub id
    ("org/name"), tried in this order; write "./name" for a directory that is called like an alias.
    ``revision``: branch, tag or commit on the hub; for an alias, it asks for the hub's copy.
    ``lora``: folder of an adapter that is merged into the model's matrices.

    Raises:
        CheckpointError: there is no such model, it cannot be fetched, or a file of it is damaged.
        ConfigError: ``revision`` was given for a local path.
    """
    name = str(model)
    path = locate(name, revision)
    if path.is_dir():
        checkpoint = _open_directory(name, path, lora)
        if lora is None:
            return checkpoint
        return replace(checkpoint, weights=with_adapter(checkpoint.weights, local_path(lora)))
    if lora is not None:
        raise CheckpointError(
            f"lora is {str(lora)!r:.80}, but adapters are merged into Hugging Face folders alone; give it a name for "
            "requests to use (--lora NAME=PATH)."
        )
    require_model(path)
    return _open_gguf(name, path)


def open_modules(model: str | Path) -> Checkpoint:
    """Open what holds multi-token modules: as ``open_checkpoint``, or one safetensors file beside the ``config.json``
    of its model.

    Raises:
        CheckpointError: as ``open_checkpoint``.
    """
    path = locate(str(model))
    if path.suffix != ".safetensors" or not path.is_file():
        return open_checkpoint(model)
    config, weights = read_json(path.parent / "config.json"), SafetensorsFiles(path)
    return Checkpoint("hf", str(model), path, config, dequantised(weights, config, path.parent, part=True))


def _open_directory(name: str, directory: Path, lora: str | Path | None) -> Checkpoint:
    adapters = [file for file in _ADAPTER_FILES if (directory / file).exists()]
    if adapters and lora is None:
        raise _adapter(directory, f"remove {' and '.join(adapters)} to run the model without it")
    require_model(directory)
    config = read_json(directory / "config.json")
    generation_file = directory / "generation_config.json"
    if generation_file.exists():
        generation = read_json(generation_file)
        config |= {key: generation[key] for key in _OVERRIDDEN if generation.get(key) is not None}
    pickled = has_pickled_files(directory) and not has_safetensors(directory)
    weights: OpenWeights = PickledFiles(directory) if pickled else SafetensorsFiles(directory)
    return Checkpoint("hf", name, directory, config, dequantised(weights, config, directory))


def _adapter(path: Path, mend: str) -> CheckpointError:
    return CheckpointError(
        f"{path} holds an adapter (LoRA); name its model as the model and the adapter's folder with --lora (lora=), or "
        f"{mend}."
    )


def _open_gguf(name: str, path: Path) -> Checkpoint:
    file = GgufFile(path)
    if file.metadata.get("general.type") == "adapter":
        raise _adapter(path, "name the model's file to run it without")
    weights = file if file.metadata.get("split.count", 0) in (0, 1) else SplitGguf(file)
    metadata = weights.metadata
    return Checkpoint("gguf", name, path, metadata, with_metadata_tensors(with_nvfp4(weights), metadata))
