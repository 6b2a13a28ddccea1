"""A GGUF model in several files, as llama.cpp's ``gguf-split`` writes them: "name-00001-of-00003.gguf".

Each file has the keys ``split.no``, ``split.count`` and ``split.tensors.count``; the first has all others, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.files import FileStamp
from headstart.models.gguf_file import GgufFile
from headstart.models.stored import StoredTensor, digest_of

_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_PARTS = 10_000


class SplitGguf:
    """The tensors of all parts, and the metadata of the first.

    Args:
        part: any of them, which says that it is one.

    Raises:
        CheckpointError: a part is missing, damaged, or another model's.
    """

    def __init__(self, part: GgufFile) -> None:
        path, count = part.path, part.metadata.get("split.count")
        named = _NAME.fullmatch(path.name)
        if not isinstance(count, int) or not 1 < count < _MOST_PARTS or named is None or int(named["count"]) != count:
            raise CheckpointError(
                f"{path} is one of {count!r:.20} parts, but is not called so; name the parts as they were published, "
                "like model-00001-of-00003.gguf."
            )
        paths = [path.with_name(f"{named['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
        missing = [each.name for each in paths if not each.exists()]
        if missing:
            raise CheckpointError(
                f"{path} is one of {count} parts, of which {missing[0]}{' and others' if len(missing) > 1 else ''} is "
                "missing; fetch it into the same folder."
            )
        self._parts = [part if each == path else GgufFile(each) for each in paths]
        self._home: dict[str, GgufFile] = {}
        for number, each in enumerate(self._parts):
            if (each.metadata.get("split.no"), each.metadata.get("split.count")) != (number, count):
                raise CheckpointError(f"{each.path} is not part {number + 1} of {count}; fetch it again.")
            for name in each.tensors:
                if name in self._home:
                    raise CheckpointError(f"{each.path}: tensor {name!r:.60} is in another part, too; fetch it again.")
                self._home[name] = each
        self.metadata: Mapping[str, Any] = self._parts[0].metadata
        promised = self.metadata.get("split.tensors.count")
        if promised is not None and promised != len(self._home):
            raise CheckpointError(
                f"{paths[0]} and its other parts hold {len(self._home)} tensors instead of {promised!r:.20}; fetch "
                "them again."
            )

    @property
    def stamps(self) -> tuple[FileStamp, ...]:
        """Of all parts, in order."""
        return tuple(stamp for part in self._parts for stamp in part.stamps)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: part.tensors[name].shape for name, part in self._home.items()}

    def read(self, name: str, index: int | None = None) -> Tensor:
        """As ``GgufFile.read``."""
        return self._part(name).read(name, index)

    def stored(self, name: str) -> StoredTensor:
        """As ``GgufFile.stored``."""
        return self._part(name).stored(name)

    def stored_bits(self, name: str) -> float:
        """As ``GgufFile.stored_bits``."""
        return self._part(name).stored_bits(name)

    def digest(self) -> str:
        """As of the same model in one file."""
        return digest_of({name: part.stored(name) for name, part in self._home.items()})

    def _part(self, name: str) -> GgufFile:
        return self._home.get(name, self._parts[0])
