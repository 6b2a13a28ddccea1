"""Linear layers and the likeliest tokens on the native library: what is computed beside passes."""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.library import Library
from headstart.backends.native.loader import load_library
from headstart.backends.native.packing import RowTable, address, as_float32
from headstart.backends.native.precision import Precision, library_number
from headstart.backends.native.team import team_size
from headstart.backends.torch.head_kit import Kit
from headstart.errors import ConfigError
from headstart.models.linear_weights import LinearWeights
from headstart.passes.batch import IntArray


class NativeLinear:
    """y = x W^T + b on float32 rows, packed like the layers of a pass.

    Args:
        bits: of weights in blocks (int4, int4-fast), as ``formats`` has them.

    Raises:
        ConfigError: memory is short.
    """

    def __init__(
        self, library: Library, weights: LinearWeights, precision: Precision, threads: int, bits: int = 4
    ) -> None:
        table = RowTable(library, weights.matrix)
        bias = None if weights.bias is None else as_float32(weights.bias)
        self._outputs, self._inputs = weights.matrix.shape
        handle = library.linear_create(
            library_number(precision),
            threads,
            self._outputs,
            self._inputs,
            table.rows,
            table.count,
            None if bias is None else bias.data_ptr(),
            bits,
        )
        if not handle:
            raise ConfigError(f"a matrix of {self._outputs} x {self._inputs} does not fit in memory as {precision}")
        self.handle: int = handle
        self._library = library
        weakref.finalize(self, library.linear_destroy, handle)
        self.nbytes = int(library.linear_bytes(handle))

    def __call__(self, x: Tensor) -> Tensor:
        """[row, in] -> float32 [row, out]."""
        if x.shape[1:] != (self._inputs,):
            raise ValueError(f"rows are {tuple(x.shape)}; rows x inputs is {(len(x), self._inputs)}")
        x = as_float32(x)
        y = torch.empty(len(x), self._outputs)
        error = self._library.linear_run(self.handle, len(x), x.data_ptr(), y.data_ptr())
        if error is not None:
            raise ValueError(f"the layer cannot run: {error.decode()}")
        return y


FASTEST_PRECISION: Precision = "int4-fast"
"""Where a little less precision does not matter: a draft's few rows take less time the fewer bytes are read."""


def head_precision(precision: str) -> Precision:
    """A head's precision by its name; "auto": the fastest."""
    return FASTEST_PRECISION if precision == "auto" else precision  # type: ignore[return-value]


def native_kit(precision: Precision = "bf16", threads: int | None = None, isa: str | None = None) -> Kit | None:
    """Everything by the native library; None if there is none on this machine."""
    library = load_library(isa)
    if library is None:
        return None
    team = threads or team_size()
    return Kit(
        torch.float32,
        lambda weights: NativeLinear(library, weights, precision, team),
        torch.device("cpu"),
        partial(best_tokens, library),
    )


def best_tokens(library: Library, logits: Tensor, ranks: int) -> tuple[NDArray[np.float32], IntArray]:
    """``best_tokens``, of equal logits the first."""
    rows, size = logits.shape
    logits = as_float32(logits)
    log_probs, ids = np.empty((rows, ranks), np.float32), np.empty((rows, ranks), np.int32)
    library.best(logits.data_ptr(), rows, size, ranks, address(log_probs), address(ids))
    return log_probs, ids
