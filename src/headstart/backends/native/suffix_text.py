"""A sequence's suffix automaton in the native library (``src/rounds/suffix_text.h``)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np

from headstart.backends.native.library import Library, Suffix
from headstart.backends.native.packing import address
from headstart.errors import ConfigError
from headstart.passes.backend import TextBounds
from headstart.passes.batch import IntArray

_NO_MEMORY = "a text to copy guesses from does not fit in memory"


class NativeSuffixText:
    """See ``TextIndex``.

    Raises:
        ConfigError: memory is short.
    """

    def __init__(self, library: Library, bounds: TextBounds) -> None:
        self._library = library
        matches, ratios = (np.array(each, np.float64) for each in (bounds.matches, bounds.ratios))
        handle = library.text_create(bounds.max_depth, address(matches), len(matches), address(ratios), len(ratios))
        if not handle:
            raise ConfigError(_NO_MEMORY)
        weakref.finalize(self, library.text_destroy, handle)
        self.isa = library.isa
        self.compiled = Suffix(
            text=handle,
            factor=bounds.factor,
            offset=bounds.offset,
            min_probability=bounds.min_probability,
            nodes=bounds.nodes,
            max_depth=bounds.max_depth,
        )
        """For the library."""
        self._consulted: list[NativeSuffixText] = []
        """They live as long."""

    @property
    def learnt(self) -> int:
        """Tokens of the last stretch that it has appended."""
        return int(self.compiled.learnt)

    def start_text(self) -> None:
        """What follows is a text of its own: no substring spans the border."""
        self._library.text_start(self.compiled.text)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens.

        Raises:
            ConfigError: memory is short; the text is of no use then.
        """
        ids = np.array(tokens, np.int32)
        if self._library.text_extend(self.compiled.text, address(ids), len(ids)):
            raise ConfigError(_NO_MEMORY)

    def consult(self, other: object) -> None:
        """See ``TextIndex``.

        Raises:
            ConfigError: memory is short.
        """
        assert isinstance(other, NativeSuffixText)
        if self._library.text_consult(self.compiled.text, other.compiled.text):
            raise ConfigError(_NO_MEMORY)
        self._consulted.append(other)

    def guess(self, nodes: int, depth: int, path: Sequence[int] = ()) -> tuple[IntArray, IntArray, IntArray]:
        """See ``TextIndex``.

        Raises:
            ConfigError: memory is short.
        """
        table = np.empty((3, max(nodes, 1)), np.int32)
        first, size = address(table), table.strides[0]
        behind = np.array(path, np.int32)
        found = self._library.text_guess(
            ctypes.byref(self.compiled),
            address(behind),
            len(behind),
            nodes,
            depth,
            first,
            first + size,
            first + 2 * size,
        )
        if found < 0:
            raise ConfigError(_NO_MEMORY)
        tokens, parents, grades = table[:, :found]
        return tokens, parents, grades
