"""Adapters in the form that the library takes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import cast

from headstart.backends.native.library import Library
from headstart.errors import ConfigError
from headstart.models.adapters import AdapterWeights


class NativeAdapter:
    """One of a packed model's, in the library; it keeps the model's ``owner``.

    Raises:
        ConfigError: memory is short.
    """

    def __init__(self, library: Library, owner: object, model: int, weights: AdapterWeights) -> None:
        self.handle, self._owner = library.adapter_create(model), owner
        weakref.finalize(self, library.adapter_destroy, self.handle)
        for (layer, place), pair in weights.changes.items():
            down, up = (each.contiguous() for each in pair)
            given = (layer, place, len(down), down.data_ptr(), up.data_ptr())
            if not self.handle or library.adapter_set(self.handle, *given) is not None:
                raise ConfigError("there is no memory for the adapter; unload another one.")


def handles_of(adapters: Sequence[object | None] | None) -> list[int | None]:
    """What the library knows them by."""
    return [None if each is None else cast(NativeAdapter, each).handle for each in adapters or ()]
