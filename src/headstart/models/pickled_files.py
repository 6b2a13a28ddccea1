"""Reading the ``pytorch_model.bin`` of a Hugging Face directory, one file or several with an index.

PyTorch's restricted unpickler reads them (``weights_only``): it makes tensors and plain containers and runs no code of
the file's. Tensors stay in a memory map until they are read.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.files import FileStamp, read_json, require_file
from headstart.models.stored import StoredTensor, digest_of, stored_tensor

SINGLE_FILE = "pytorch_model.bin"
INDEX_FILE = "pytorch_model.bin.index.json"


def has_pickled_files(directory: Path) -> bool:
    """Whether a directory holds its weights so."""
    return (directory / INDEX_FILE).exists() or (directory / SINGLE_FILE).exists()


class PickledFiles:
    """The tensors of a directory's pickled files.

    Raises:
        CheckpointError: a missing or damaged file, one that holds more than tensors, a tensor in two files, or an index
            that names what is not there.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        index = directory / INDEX_FILE
        names = sorted(set(_weight_map(index).values())) if index.exists() else [SINGLE_FILE]
        self._tensors: dict[str, Tensor] = {}
        self.stamps: tuple[FileStamp, ...] = ()
        for path in (directory / name for name in names):
            require_file(path)
            self.stamps = (*self.stamps, FileStamp.of(path))
            for name, tensor in read_pickled(path).items():
                if name in self._tensors:
                    raise CheckpointError(f"{path}: tensor {name!r:.60} is in another file, too; remove one of them.")
                self._tensors[name] = tensor
        if index.exists() and (absent := _weight_map(index).keys() - self._tensors.keys()):
            raise CheckpointError(f"{index} names {sorted(absent)[0]!r:.60}, which no file holds; fetch them again.")

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str, index: int | None = None) -> Tensor:
        """One tensor in its stored dtype, or the one numbered ``index`` of those that are stacked in it.

        Raises:
            CheckpointError: there is no such tensor.
        """
        if name not in self._tensors:
            raise CheckpointError(f"{self._directory} has no tensor named {name!r}.")
        tensor = self._tensors[name]
        return (tensor if index is None else tensor[index]).contiguous()

    def stored(self, name: str) -> StoredTensor:
        """One tensor as it is.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return stored_tensor(self.read(name))

    def stored_bits(self, name: str) -> float:
        """What a weight of this tensor takes at least: nothing smaller is taken for one."""
        return 16.0

    def digest(self) -> str:
        """Identity of the weights, see ``WeightsDigest``: that of the same tensors in safetensors files."""
        return digest_of({name: self.stored(name) for name in self._tensors})


def read_pickled(path: Path) -> dict[str, Tensor]:
    """A pickled table of tensors.

    Raises:
        CheckpointError: it is damaged, or holds anything else.
    """
    try:
        # Files older than PyTorch 1.6 are no archives and cannot be mapped.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is damaged, or holds more than tensors, which is not loaded since it could run code; convert it "
            "to safetensors (save_pretrained of transformers writes them)."
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{path} is damaged ({reason:.200}); fetch it again.") from error
    if not isinstance(loaded, dict) or not all(isinstance(each, Tensor) for each in loaded.values()):
        raise CheckpointError(f"{path} is no table of tensors; convert it with save_pretrained of transformers.")
    return {str(name): tensor.detach() for name, tensor in loaded.items()}


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch it again.")
    for name, file in weight_map.items():
        # A bare file name: an index must not reach outside of its directory.
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".bin"):
            raise CheckpointError(f"{index} places {name!r:.60} in {file!r:.60}, which is no .bin file beside it.")
    return weight_map
