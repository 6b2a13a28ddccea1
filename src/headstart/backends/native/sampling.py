"""``sampling.kernels.RowKernels`` from the native library."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from headstart.backends.native.library import Library, Noise
from headstart.sampling.kernels import NoiseKey

_MOST_CONTENDERS = 32


class NativeRows:
    """Rows as the library of one instruction set reads them. From one thread at a time."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def noise_words(self, noise: NoiseKey, vocab_size: int, ids: NDArray[np.int64] | None) -> NDArray[np.uint32]:
        if ids is None:
            words = np.empty(vocab_size, np.uint32)
            self._library.noise_words(_of(noise), None, vocab_size, _address(words))
            return words
        ids = np.ascontiguousarray(ids, dtype=np.int64)
        words = np.empty(len(ids), np.uint32)
        self._library.noise_words(_of(noise), _address(ids), len(ids), _address(words))
        return words

    def contenders(
        self, row: NDArray[np.float32], temperature: float, floor: float, noise: NoiseKey
    ) -> NDArray[np.int64]:
        row = np.ascontiguousarray(row, np.float32)
        ids = np.empty(_MOST_CONTENDERS, np.int64)
        count = self._library.contenders(
            _address(row), len(row), temperature, floor, _of(noise), _address(ids), _MOST_CONTENDERS
        )
        return ids[:count]

    def ranked(self, row: NDArray[np.float32], rank: int) -> float:
        row = np.ascontiguousarray(row, np.float32)
        return float(self._library.ranked(_address(row), len(row), rank))

    def mass(self, row: NDArray[np.float32], peak: float, temperature: float) -> float:
        row = np.ascontiguousarray(row, np.float32)
        return float(self._library.mass(_address(row), len(row), peak, temperature))


def _of(noise: NoiseKey) -> object:
    return ctypes.byref(Noise(**noise._asdict()))


def _address(array: NDArray[np.generic]) -> int:
    # The caller holds the array, contiguous, during the call.
    address: int = array.__array_interface__["data"][0]
    return address
