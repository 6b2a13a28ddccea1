"""Opening a model by alias, path or hub id.

Nothing is computed here and nothing of the model's architecture is known: a checkpoint is named tensors and
plain metadata, checked as far as the files alone allow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from headstart.errors import CheckpointError, ConfigError, closest
from headstart.models.aliases import ALIASES
from headstart.models.derived import OpenWeights
from headstart.models.files import WeightsIdentity, exists, local_path, read_json
from headstart.models.gguf_file import GgufFile
from headstart.models.gguf_split import SplitGguf
from headstart.models.lora import with_adapter
from headstart.models.metadata_tensors import with_metadata_tensors
from headstart.models.pickled_files import PickledFiles, has_pickled_files
from headstart.models.quantised.opening import SETTINGS_FILES, dequantised
from headstart.models.safetensors_files import SafetensorsFiles, has_safetensors
from headstart.models.stored import StoredTensor

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "vocab.json",
    "target_vocab.json",
    "*.py",  # run where that is asked for
    "adapter_config.json",  # to be refused
    *SETTINGS_FILES,
]
_OVERRIDDEN = (
    "eos_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "max_initial_timestamp_index",
    "alignment_heads",
)
"""Entries of ``config.json`` that ``generation_config.json`` overrides, as in transformers' generate."""
_PICKLED_HUB_FILES = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
"""Fetched where there is nothing better."""
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
    path = _locate(name, revision)
    if path.is_dir():
        checkpoint = _open_directory(name, path, lora)
        if lora is None:
            return checkpoint
        return replace(checkpoint, weights=with_adapter(checkpoint.weights, local_path(lora)))
    if lora is not None:
        raise CheckpointError(f"lora is {str(lora)!r:.80}, but adapters are merged into Hugging Face folders alone.")
    if path.suffix == ".gguf":
        return _open_gguf(name, path)
    raise CheckpointError(f"{path} is neither a .gguf file nor a directory; name the model's directory instead.")


def _locate(name: str, revision: str | None) -> Path:
    alias = ALIASES.get(name)
    if alias is not None:
        installed = None if revision else alias.installed_file()
        return installed or fetch(alias.hub_id, revision, mend=f"install it: {alias.install}")
    path = local_path(name)
    if name and exists(path):
        if revision is not None:
            raise ConfigError(f"revision is {revision!r}, but model {name!r} is a local path; leave revision out.")
        return path
    if is_hub_id(name) and path.suffix != ".gguf":
        return fetch(name, revision, mend="check the name, or download it elsewhere and name its directory")
    near = closest(name, ALIASES)
    raise CheckpointError(
        f"model is {name!r}, which does not exist; {f'did you mean {near!r}? Else ' if near else ''}"
        f"give a directory, a .gguf file, a hub id (org/name) or an alias ({', '.join(sorted(ALIASES))})."
    )


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a repository on the hub ("org/name")."""
    return _HUB_ID.fullmatch(name) is not None


def fetch(hub_id: str, revision: str | None, mend: str, files: Sequence[str] = _HUB_FILES) -> Path:
    """The local snapshot of a hub repository, downloaded where it is not cached yet.

    Args:
        mend: what to do if it cannot be had, as the end of a sentence.
        files: patterns of those that are wanted.

    Raises:
        CheckpointError: there is no such repository, or it cannot be fetched.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(files)))
        if files is _HUB_FILES and not has_safetensors(found):
            found = Path(
                snapshot_download(hub_id, revision=revision, allow_patterns=[*_HUB_FILES, *_PICKLED_HUB_FILES])
            )
        return found
    except LocalEntryNotFoundError as error:
        raise CheckpointError(
            f"model {hub_id!r} is neither a local path nor cached, and the hub cannot be reached; {mend}."
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        first_line = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(f"model {hub_id!r} cannot be fetched from the hub ({first_line}); {mend}.") from error


def _open_directory(name: str, directory: Path, lora: str | Path | None) -> Checkpoint:
    adapters = [file for file in _ADAPTER_FILES if (directory / file).exists()]
    if adapters and lora is None:
        raise _adapter(directory, f"remove {' and '.join(adapters)} to run the model without it")
    if not (directory / "config.json").exists():
        files = sorted(file.name for file in directory.glob("*.gguf"))
        if files:
            raise CheckpointError(f"{directory} is a directory of GGUF files; name one of them: {', '.join(files)}.")
        raise CheckpointError(f"{directory} has no config.json; name a directory that holds a model.")
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
    return Checkpoint("gguf", name, path, metadata, with_metadata_tensors(weights, metadata))
