"""Which form of packed weights holds what kind of stored ones: at least as near to the file as bf16, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.matrices import (
    LINEARS,
    MAMBA_LINEARS,
    DecoderParts,
    experts_of,
    formed_of,
    head_row,
    linears_of,
    matrices_of,
)
from headstart.backends.native.precision import Precision
from headstart.models.gguf_types import CODEBOOK_TYPES
from headstart.models.linear_weights import LinearWeights
from headstart.models.state_weights import MambaWeights
from headstart.models.stored import Matrix, MatrixPart
from headstart.models.weights import LayerWeights

PARTS = 7
"""Of a matrix, that may have forms of their own: queries, keys and values, and what gates and steps of the delta rule
are made of, or compressed keys; gates and ups; others are one part."""

ABSENT = 0
FOUR, EIGHT, BF16, OWN = 4, 8, 16, 64
"""No such matrix; blocks with levels of four or eight bits; bf16; ``OWN`` and the number of a type: a file's own
blocks. As ``headstart_create`` takes them."""

KINDS = (
    {"F32": 0, "F16": 1, "BF16": 30}
    # GGUF's types in blocks of 32 weights, of 256, of 256 with codebooks, and of few bits
    | {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "IQ4_NL": 20, "MXFP4": 39}
    | {"Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23}
    | {"IQ1_S": 19, "IQ1_M": 29, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ2_S": 22, "IQ3_XXS": 18, "IQ3_S": 21}
    | {"TQ1_0": 34, "TQ2_0": 35, "Q1_0": 41, "Q2_0": 42, "Q2_0/128": 112}
    # those of folders
    | {"INT4/32": 100, "INT4/64": 101, "INT4/128": 102, "INT4/256": 103}
    | {"INT8/32": 104, "INT8/128": 105, "INT8/ROW": 106}
    | {"NF4": 107, "FP4": 108, "NVFP4/16": 109, "FP8": 110, "FP8/128": 111}
)
"""What the library reads as files have it (``src/kernels/formats/stored_rows.h``), a folder's by the names of
``quantised.rows``; of other types it is given floats."""

FOLDER_KERNELS = (
    *("INT4/32", "INT4/64", "INT4/128", "INT4/256", "INT8/32", "INT8/128", "INT8/ROW"),
    *("NF4", "FP4", "NVFP4/16"),
)
FLOAT8_KERNELS = ("FP8", "FP8/128")
OWN_KERNELS = (
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("Q1_0", "Q2_0", "Q2_0/128", "TQ1_0", "TQ2_0"),
    *CODEBOOK_TYPES,
    *FOLDER_KERNELS,
    *FLOAT8_KERNELS,
)
"""What the library multiplies in the file's own blocks (``src/kernels/formats/stored/``)."""

_SHARED_ROWS = 16
"""Of "FP8/128": neighbours in a matrix that are to have one scale."""

_HELD_BY = {"Q4_1": FOUR, "Q8_0": EIGHT} | {
    kind: bits
    for name, bits in (("INT4", FOUR), ("INT8", EIGHT))
    for kind in (name, *FOLDER_KERNELS)
    if kind.startswith(name)
}
"""Blocks that hold a type's weights better than bf16 does, most of them to the bit. Types that are not named, and have
no kernel of their own, are in bf16."""

_FOUR_BIT_BLOCKS = 5.0
"""Bits that a weight takes at most in a file's blocks of 4 bits, units and offsets included."""


def types_of(matrix: Tensor | Matrix) -> list[str]:
    """What its parts are stored as."""
    if isinstance(matrix, Tensor):
        return ["BF16" if matrix.dtype is torch.bfloat16 else "F32"]
    return ["F32" if part.stored is None else part.stored.type for part in matrix.parts]


def nearest_forms(weights: DecoderParts, multiplies_bytes: bool) -> NDArray[np.uint8]:
    """uint8 [matrix, part] the smallest form of each matrix that is at least as near to the file as bf16, in the order
    of ``matrices_of``.

    ``multiplies_bytes``: without a dot product of bytes, rows are dear in blocks of eight bits that are not the file's
    own; then only the head, which few rows read, has them, and it alone is no reason for blocks.
    """
    matrices, head = matrices_of(weights), head_row(weights.layers)
    forms = _alike([ABSENT if each is None else _nearest(types_of(each.matrix)) for each in matrices])
    if not multiplies_bytes:
        dear = forms == EIGHT
        dear[head] = False
        forms[dear] = BF16
    kept = _keep_own(weights, matrices, forms)
    if not multiplies_bytes and not kept and FOUR not in forms:
        forms[forms != ABSENT] = BF16
    return forms


def all_in_bf16(forms: NDArray[np.uint8]) -> bool:
    """Whether all matrices that there are have this form."""
    return bool(((forms == BF16) | (forms == ABSENT)).all())


def _nearest(types: Sequence[str]) -> int:
    forms = {_HELD_BY.get(each, BF16) for each in types}
    return forms.pop() if len(forms) == 1 else BF16


def single_form(linear: LinearWeights, precision: Precision, multiplies_bytes: bool) -> tuple[Precision, int]:
    """The precision of a matrix by itself in a model of this one, and its bits where that is in blocks: the file's own,
    if all of it is of one type that has a kernel."""
    if precision not in ("nearest", "blocks"):
        return precision, FOUR
    types = set(own_types(linear.matrix))
    bits = _nearest(types_of(linear.matrix))
    if len(types) == 1 and not (multiplies_bytes and types <= set(_AS_SMALL.get(bits, ()))):
        return "int4", OWN + KINDS[types.pop()]
    if bits == FOUR or (bits == EIGHT and multiplies_bytes):
        return "int4", bits
    return ("bf16", FOUR) if precision == "nearest" else ("int4", EIGHT)


def blocks_forms(weights: DecoderParts, as_stored: bool) -> NDArray[np.uint8]:
    """The same where everything is to be in blocks: the file's own, if that is asked for and they have a kernel; else
    the head has levels of eight bits."""
    matrices, in_four = matrices_of(weights), mostly_in_four_bits(weights.layers)
    others = [_levels(each, as_stored, in_four) for each in matrices[head_row(weights.layers) + 1 :]]
    forms = _alike([*level_bits(weights.layers, as_stored).reshape(-1), EIGHT, *others])
    if as_stored:
        _keep_own(weights, matrices, forms)
    return forms


def _alike(forms: Sequence[int]) -> NDArray[np.uint8]:
    return np.repeat(np.array(forms, np.uint8)[:, None], PARTS, axis=1)


_AS_SMALL = {FOUR: ("Q4_1",), EIGHT: ("Q8_0",)}
"""Types that blocks of such levels hold to the bit and in as few bytes: as fast, and rows have two bits more."""


def _keep_own(weights: DecoderParts, linears: Sequence[LinearWeights | None], forms: NDArray[np.uint8]) -> bool:
    """Whether some matrices are in their file's own blocks, which is noted in ``forms``."""
    kept, up = False, LINEARS.index("up")
    raised = {id(linears_of(layer)[up]) for layer in weights.layers}
    raised |= {id(expert.up) for layer in weights.layers for expert in experts_of(layer)}
    for linear, row in zip(linears, forms, strict=True):
        types = () if linear is None else own_types(linear.matrix, id(linear) in raised)
        if not types or set(types) <= set(_AS_SMALL.get(int(row[0]), ())):
            continue
        row[:] = [OWN + KINDS[each] for each in types]
        kept = True
    return kept


def own_types(matrix: Tensor | Matrix, raised: bool = False) -> tuple[str, ...]:
    """By part, the types of a matrix that can be multiplied in its file's own blocks; nothing where it cannot.

    ``raised``: of several types its parts have to be gates and ups, as many.
    """
    types = types_of(matrix)
    if not all(each in OWN_KERNELS for each in types) or not _one_kernel(matrix, types):
        return ()
    if len(set(types)) == 1:
        return (types[0],) * PARTS
    if isinstance(matrix, Tensor) or len(types) > PARTS:
        return ()
    halves = [part.rows for part in matrix.parts] == [matrix.shape[0] // 2] * 2
    return () if raised and not halves else (*types, *types[-1:] * (PARTS - len(types)))


def _one_kernel(matrix: Tensor | Matrix, types: Sequence[str]) -> bool:
    """Whether one kernel takes all types: FP8, and on a matrix unit NVFP4, have others than whole numbers have; blocks
    of FP8 are those of rows that stay side by side."""
    kernels = {each if each == "NVFP4/16" else each in FLOAT8_KERNELS for each in types}
    if kernels == {False} or isinstance(matrix, Tensor):
        return True
    return len(kernels) == 1 and ("FP8/128" not in types or all(map(_keeps_neighbours, matrix.parts)))


def _keeps_neighbours(part: MatrixPart) -> bool:
    """Whether rows that share a scale stay side by side."""
    if part.rows % _SHARED_ROWS:
        return False
    if part.order is None:
        return True
    runs = part.order.reshape(-1, _SHARED_ROWS)
    return bool((runs[:, 0] % _SHARED_ROWS == 0).all() and (np.diff(runs) == 1).all())


_CALLED = {
    FOUR: "blocks of 4 bits",
    EIGHT: "blocks of 8 bits",
    BF16: "bf16",
}


def computed_in(weights: DecoderParts, forms: NDArray[np.uint8]) -> str:
    """What a user is to know of a file's types, a sentence; nothing where blocks as small hold all of them to the
    bit."""
    types: dict[str, set[str]] = {}
    is_plain = True
    for linear, row in zip(matrices_of(weights), forms.tolist(), strict=True):
        for kind in () if linear is None else types_of(linear.matrix):
            if kind not in ("F32", "F16", "BF16"):
                types.setdefault("the file's own blocks" if row[0] >= OWN else _CALLED[row[0]], set()).add(kind)
                is_plain &= kind in _AS_SMALL.get(row[0], ())
    if is_plain:
        return ""
    own_first = sorted(types, key=lambda name: (name in _CALLED.values(), name))
    parts = [f"{name} ({', '.join(sorted(types[name]))})" for name in own_first]
    return f"Weights are computed in {', '.join(parts)}."


def level_bits(layers: Sequence[LayerWeights], as_stored: bool = False) -> NDArray[np.uint8]:
    """uint8 [layer, matrix] how many bits levels get where weights are in blocks: 4, or 8 for what a file keeps in more
    than 4 of which it keeps most weights in 4 (Q4_K_M, say). Of other files, 4 bits are what was asked for.

    ``as_stored``: 4 for what blocks of 4 bits hold and 8 for everything else. (In fewer bits, blocks are shorter: no
    grid of sixteen levels holds two of them.)
    """
    in_four = mostly_in_four_bits(layers)
    bits = np.array([[_levels(each, as_stored, in_four) for each in formed_of(layer)] for layer in layers], np.uint8)
    small = [isinstance(layer.mixer, MambaWeights) for layer in layers]
    bits[small, len(LINEARS) : len(LINEARS) + len(MAMBA_LINEARS)] = BF16
    return bits


def _levels(linear: LinearWeights | None, as_stored: bool, mostly_in_four: bool) -> int:
    if linear is None:
        return ABSENT
    if as_stored:
        return FOUR if _fits_four(linear) else EIGHT
    return EIGHT if linear.stored_bits > _FOUR_BIT_BLOCKS and mostly_in_four else FOUR


def _fits_four(linear: LinearWeights) -> bool:
    if isinstance(linear.matrix, Tensor):
        return 4 <= linear.stored_bits <= _FOUR_BIT_BLOCKS
    return _nearest(types_of(linear.matrix)) == FOUR


def mostly_in_four_bits(layers: Sequence[LayerWeights]) -> bool:
    """Whether the file that they come from keeps most of their weights in blocks of 4 bits."""
    return _mostly(layers, lambda bits: bits <= _FOUR_BIT_BLOCKS)


def _mostly(layers: Sequence[LayerWeights], holds: Callable[[float], bool]) -> bool:
    """Whether something holds of what most weights take in the file."""
    matrices = [linear for layer in layers for part in (layer.mixer, layer.channel) if part for linear in part.linears]
    sizes = [each.matrix.shape[0] * each.matrix.shape[1] for each in matrices]
    of_those = [size for size, each in zip(sizes, matrices, strict=True) if holds(each.stored_bits)]
    return 2 * sum(of_those) > sum(sizes)
