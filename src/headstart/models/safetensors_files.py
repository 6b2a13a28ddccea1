"""Reading the safetensors files of a Hugging Face directory, one file or several with an index.

The ``safetensors`` package checks each header (length, offsets, overlaps, coverage of the file) before any
tensor is touched; this module checks the files against each other and words the errors.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.files import FileStamp, read_json, require_file
from headstart.models.locating import INDEX_FILE, SINGLE_FILE
from headstart.models.stored import StoredTensor, digest_of


class SafetensorsFiles:
    """The tensors of a directory's safetensors files, or of one such file.

    Raises:
        CheckpointError: no such file, a missing or damaged shard, an index that names what is not there, a tensor
            in two shards, or weights in a pickle format only.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        weight_map: dict[str, str] = {}
        shards = [directory]
        if (directory / INDEX_FILE).exists():
            weight_map = _weight_map(directory / INDEX_FILE)
            shards = [directory / name for name in sorted(set(weight_map.values()))]
        elif not directory.is_file():
            shards = [directory / SINGLE_FILE]
            if not shards[0].exists():
                raise CheckpointError(_no_weights(directory))
        self._home: dict[str, _Shard] = {}
        for shard in map(_Shard, shards):
            for name in shard.shapes:
                if name in self._home:
                    other = self._home[name].path.name
                    raise CheckpointError(
                        f"{directory}: tensor {name!r} is in both {other} and {shard.path.name}; remove one of them."
                    )
                self._home[name] = shard
        for name, shard_name in weight_map.items():
            if name not in self._home or self._home[name].path.name != shard_name:
                raise CheckpointError(
                    f"{directory / INDEX_FILE} says that {name!r} is in {shard_name}, but it is not; fetch both again."
                )

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: shard.shapes[name] for name, shard in self._home.items()}

    def read(self, name: str, index: int | None = None) -> Tensor:
        """One tensor in its stored dtype, or the one numbered ``index`` of those that are stacked in it.

        Raises:
            CheckpointError: there is no such tensor, or it cannot be read.
        """
        return self._shard(name).read(name, index)

    def stored(self, name: str) -> StoredTensor:
        """One tensor as it is; nothing is read.

        Raises:
            CheckpointError: there is no such tensor.
        """
        return self._shard(name).stored(name)

    def _shard(self, name: str) -> _Shard:
        shard = self._home.get(name)
        if shard is None:
            raise CheckpointError(f"{self._directory} has no tensor named {name!r}.")
        return shard

    def stored_bits(self, name: str) -> float:
        """What a weight of this tensor takes at least: nothing smaller is taken for one."""
        return 16.0

    @property
    def stamps(self) -> tuple[FileStamp, ...]:
        """Of all files, in the order of their names."""
        shards = {shard.path: shard.stamp for shard in self._home.values()}
        return tuple(stamp for _, stamp in sorted(shards.items()))

    def digest(self) -> str:
        """Identity of the weights, see ``WeightsDigest``."""
        return digest_of({name: shard.stored(name) for name, shard in self._home.items()})


class _Shard:
    """One safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            raise CheckpointError(f"{path} is missing; fetch it, or the whole directory, again.")
        require_file(path)
        try:
            self.stamp = FileStamp.of(path)
            self._handle = cast(Any, safe_open(path, framework="pt"))
            names = list(self._handle.keys())
            self.shapes = {name: tuple[int, ...](self._handle.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged or not a safetensors file ({error}); fetch it again.") from error

    def read(self, name: str, index: int | None) -> Tensor:
        try:
            tensor: Tensor
            tensor = self._handle.get_tensor(name) if index is None else self._handle.get_slice(name)[index]
        except (SafetensorError, OSError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{self.path}: tensor {name!r} cannot be read ({error}); fetch it again.") from error
        return tensor

    def stored(self, name: str) -> StoredTensor:
        data, records, base = self._raw
        record = records[name]
        start, stop = (base + offset for offset in record["data_offsets"])
        view = np.frombuffer(data, dtype=np.uint8, count=stop - start, offset=start)
        return StoredTensor(record["dtype"], self.shapes[name], view, False, data, start)

    @cached_property
    def _raw(self) -> tuple[mmap.mmap, dict[str, Any], int]:
        """The whole file, the header's records, and where the bytes that their ``data_offsets`` count begin."""
        with self.path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        base = 8 + int.from_bytes(data[:8], "little")
        return data, json.loads(data[8:base]), base


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch it again.")
    for name, shard in weight_map.items():
        # A bare file name: an index must not reach outside of its directory.
        if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise CheckpointError(f"{index} places {name!r} in {shard!r}, which is no safetensors file beside it.")
    return weight_map


def _no_weights(directory: Path) -> str:
    if list(directory.glob("*.bin")) or list(directory.glob("*.pt*")):
        return (
            f"{directory} holds pickled weights by names that transformers does not use; convert them to safetensors "
            "(save_pretrained of transformers writes them)."
        )
    if any(directory.glob("*.safetensors")):
        return f"{directory} holds safetensors shards but no {INDEX_FILE}; fetch it, or name one file {SINGLE_FILE}."
    return f"{directory} has neither {SINGLE_FILE} nor {INDEX_FILE}; name a directory that holds a model."
