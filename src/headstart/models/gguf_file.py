"""Reading a GGUF file: a header of key-value metadata and tensor records, then the tensors.

The format is that of ``docs/gguf.md`` in ggml-org/ggml, versions 2 and 3, little-endian. The header is parsed
here rather than by the ``gguf`` package, whose reader believes every count and size it is told; that package's
tables of block sizes and its dequantisation are used. Every number is checked against the size of the file
before it is acted on, so a damaged file costs neither memory nor time.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.files import FileStamp, require_file
from headstart.models.gguf_types import GgufType, gguf_types
from headstart.models.locating import GGUF_MAGIC
from headstart.models.stored import StoredTensor, digest_of
from headstart.models.stored_rows import PLAIN, values_of

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4

_MAX_HEADER_BYTES = 1 << 27
"""Headers of real files are below 20 MiB."""
_MAX_VALUES = 1 << 24
"""Metadata values in one file, array elements counted; a tokenizer of 300,000 tokens has about 1.5 million."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> struct code."""
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgufTensor:
    """One tensor record."""

    shape: tuple[int, ...]
    """In torch order (the file counts axes the other way round)."""
    type: GgufType
    offset: int
    """First byte, from the start of the file."""
    nbytes: int


class GgufFile:
    """An open GGUF file: its metadata as plain Python values, its tensors read one at a time from a memory map.

    Raises:
        CheckpointError: the file is missing, truncated, damaged, or of an unsupported version or tensor type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        require_file(path)
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.stamps = (FileStamp.of(path, file.fileno()),)
        except ValueError as error:  # what mmap says of an empty file
            raise CheckpointError(f"{path} is empty; fetch the file again.") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); check the path.") from error
        header = _Header(path, self._map)
        tensor_count, value_count = header.start()
        self.metadata: Mapping[str, Any] = header.metadata(value_count)
        self.tensors: Mapping[str, GgufTensor] = header.tensors(tensor_count, self._alignment())

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise CheckpointError(f"{self.path}: general.alignment is {alignment!r:.60}; it must be a power of two.")
        return alignment

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def read(self, name: str, index: int | None = None) -> Tensor:
        """One tensor, or the one numbered ``index`` of those that are stacked in it: plain types as stored, quantised
        blocks as float32.

        Raises:
            CheckpointError: there is no such tensor, or its type cannot be dequantised.
        """
        tensor = self._record(name)
        stored = self.stored(name) if index is None else self.stored(name).part(index)
        try:
            return values_of(stored.data, stored.type, stored.shape)
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has type {tensor.type.name}, which cannot be dequantised; "
                "use a file quantised to another type, such as Q8_0 or Q4_K."
            ) from error

    def stored(self, name: str) -> StoredTensor:
        """One tensor as it is; nothing is read.

        Raises:
            CheckpointError: there is no such tensor.
        """
        tensor = self._record(name)
        data = np.frombuffer(self._map, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
        kind = tensor.type.name
        return StoredTensor(kind, tensor.shape, data, kind not in PLAIN, self._map, tensor.offset)

    def _record(self, name: str) -> GgufTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.path} has no tensor named {name!r}.")
        return tensor

    def stored_bits(self, name: str) -> float:
        """What a weight of this tensor takes, with its share of a block's units: 5 in Q4_1, 8.5 in Q8_0."""
        tensor = self.tensors[name]
        return 8 * tensor.nbytes / math.prod(tensor.shape)

    def digest(self) -> str:
        """Identity of the weights, see ``WeightsDigest``."""
        return digest_of({name: self.stored(name) for name in self.tensors})


class _Header:
    """A cursor over the header that never reads past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._end = min(len(data), _MAX_HEADER_BYTES)
        self._position = 0
        self._values_left = _MAX_VALUES

    def start(self) -> tuple[int, int]:
        """Magic, version and counts -> (tensors, key-value pairs)."""
        if self._data[:4] != GGUF_MAGIC:
            raise self._damaged("it does not begin with the GGUF magic")
        self._position = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            kind = "big-endian" if version & 0xFFFF == 0 and version else f"version {version}"
            raise CheckpointError(f"{self._path} is a {kind} GGUF file; convert it to little-endian version 3.")
        return self._scalar("Q"), self._scalar("Q")

    def metadata(self, count: int) -> dict[str, Any]:
        self._check_count(count, 8 + 4 + 1, "key-value pairs")
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            if key in metadata:
                raise self._damaged(f"key {key!r:.60} occurs twice")
            metadata[key] = self._value(key, self._scalar("I"))
        return metadata

    def tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        self._check_count(count, 8 + 4 + 8 + 4 + 8, "tensors")
        records = [self._tensor_record() for _ in range(count)]
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        ends = sorted({offset for *_, offset in records})
        ends.append(len(self._data) - data_start)
        for name, shape, kinds, offset in records:
            if name in tensors:
                raise self._damaged(f"tensor {name!r:.60} occurs twice")
            room = ends[bisect_right(ends, offset, hi=len(ends) - 1)] - offset
            kind, nbytes = self._fitting(name, shape, kinds, room)
            if offset % alignment:
                raise self._damaged(f"tensor {name!r:.60} has offset {offset}, which is not a multiple of {alignment}")
            if data_start + offset + nbytes > len(self._data):
                raise self._damaged(
                    f"tensor {name!r:.60} ends at byte {data_start + offset + nbytes}, the file at {len(self._data)}"
                )
            tensors[name] = GgufTensor(shape, kind, data_start + offset, nbytes)
        self._check_overlap(tensors)
        return tensors

    def _fitting(self, name: str, shape: tuple[int, ...], kinds: Sequence[GgufType], room: int) -> tuple[GgufType, int]:
        """What a type's number means, the first that fits into the room; and the bytes that it comes to."""
        possible = [kind for kind in kinds if 0 not in shape and shape[-1] % kind.block == 0]
        if not possible:
            raise self._damaged(f"tensor {name!r:.60} of type {kinds[0].name} has the impossible shape {list(shape)}")
        sizes = [(kind, math.prod(shape) // kind.block * kind.nbytes) for kind in possible]
        return next((each for each in sizes if each[1] <= room), sizes[0])

    def _tensor_record(self) -> tuple[str, tuple[int, ...], tuple[GgufType, ...], int]:
        name = self._string()
        # llama.cpp leaves the ending out where Falcon-H1's files have it so.
        name = f"{name}.weight" if name.endswith(".ffn_norm") else name
        dimensions = self._scalar("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name!r:.60} has {dimensions} dimensions")
        shape = self._unpack(f"{dimensions}Q")[::-1]
        while dimensions == _MAX_DIMENSIONS and len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]  # as llama-quantize leaves such axes out
        raw_type = self._scalar("I")
        offset = self._scalar("Q")
        kinds = gguf_types(raw_type)
        if not kinds:
            raise self._damaged(f"tensor {name!r:.60} has the unknown type number {raw_type}")
        return name, shape, kinds, offset

    def _check_overlap(self, tensors: Mapping[str, GgufTensor]) -> None:
        ordered = sorted(tensors.items(), key=lambda item: item[1].offset)
        for (first, before), (second, after) in itertools.pairwise(ordered):
            if before.offset + before.nbytes > after.offset:
                raise self._damaged(f"tensors {first!r} and {second!r} overlap")

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        code = _SCALARS.get(kind)
        if code is None:
            raise self._damaged(f"key {key!r:.60} has the unknown value type {kind}")
        return self._scalar(code)

    def _array(self, key: str) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        code = _SCALARS.get(kind)
        if code is None and kind != _STRING:
            raise self._damaged(f"key {key!r:.60} is an array of the unsupported value type {kind}")
        self._check_count(count, 8 if code is None else struct.calcsize(f"<{code}"), f"elements of {key!r}")
        if code is None:
            return self._strings(count)
        return list(self._unpack(f"{count}{code}"))

    def _check_count(self, count: int, least_bytes: int, what: str) -> None:
        """Refuse a count that the rest of the header cannot hold, before anything is allocated for it."""
        if count * least_bytes > self._end - self._position:
            raise self._damaged(f"it announces {count} {what}, more than it can hold")
        self._values_left -= count
        if self._values_left < 0:
            raise self._damaged(f"its header holds more than {_MAX_VALUES} values")

    def _strings(self, count: int) -> list[str]:
        """So many; a tokenizer has hundreds of thousands, and each start waits for them."""
        data, position, end = memoryview(self._data), self._position, self._end
        size_of, strings = struct.Struct("<Q").unpack_from, []
        try:
            for _ in range(count):
                start = position + 8
                position = start + size_of(data, position)[0]
                if position > end:
                    raise self._damaged("a string in the header runs past its end")
                strings.append(str(data[start:position], "utf-8"))
        except struct.error as error:
            raise self._damaged("the header runs past the end of the file") from error
        except UnicodeDecodeError as error:
            raise self._damaged("a string in the header is not UTF-8") from error
        self._position = position
        return strings

    def _string(self) -> str:
        start = self._position + 8
        stop = start + self._scalar("Q")
        if stop > self._end:
            raise self._damaged("a string in the header runs past its end")
        self._position = stop
        try:
            return self._data[start:stop].decode()
        except UnicodeDecodeError as error:
            raise self._damaged("a string in the header is not UTF-8") from error

    def _scalar(self, code: str) -> Any:
        return self._unpack(code)[0]

    def _unpack(self, codes: str) -> tuple[Any, ...]:
        layout = f"<{codes}"
        start = self._position
        self._position += struct.calcsize(layout)
        if self._position > self._end:
            raise self._damaged("the header runs past the end of the file")
        return struct.unpack_from(layout, self._data, start)

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path} is damaged or not a GGUF file: {what}; fetch or convert it again.")
