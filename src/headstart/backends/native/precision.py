"""The precisions that the native library computes in, by name and number."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["bf16", "int8", "int8-fast", "fp32", "int4", "int4-fast", "blocks", "nearest"]
"""Weights in bf16; int8 per channel with 16-bit activations; int8 with 8-bit activations; float32; 4-bit blocks (8-bit
ones in a model's output head, see also ``formats.level_bits``) with 16-bit activations; with 8-bit ones but for that
head; each matrix in its file's own blocks, or, where these have no kernel, int4's arithmetic with blocks of 4 bits, if
they hold what its file has, or of 8; the same with whatever no block holds as well as bf16 in bf16."""

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def library_number(precision: Precision) -> int:
    """What the library calls a precision; forms of single matrices are told apart from it."""
    return PRECISIONS.index("int4" if precision in ("blocks", "nearest") else precision)
