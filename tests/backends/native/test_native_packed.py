"""bf16 weights come back from wherever they are packed as they were, bit by bit, whatever their exponents."""

from __future__ import annotations

import pytest
import torch
from native_cases import isa_params

from headstart.backends.native.linear import NativeLinear
from headstart.backends.native.loader import load_library
from headstart.models.linear_weights import LinearWeights

INPUTS, OUTPUTS = 448, 100
"""Inputs of fourteen tiles: the dot product cuts them into runs of six for more than twelve rows."""
ROWS = (1, 3, 7, 12, 16, 17, 32, 33, 64, 65, 192)
"""Rows of one call: with the matrix unit, one block of them reads packed weights, several read what was unpacked."""


def bfloat16(bits: torch.Tensor) -> torch.Tensor:
    """The numbers that these 16 bits stand for."""
    return bits.to(torch.int16).view(torch.bfloat16)


def weights(kind: str) -> torch.Tensor:
    """[OUTPUTS, INPUTS] finite numbers, none of them subnormal (bf16 products take those for zero)."""
    generator = torch.Generator().manual_seed(3)
    shape = (OUTPUTS, INPUTS)
    if kind == "trained":
        return (torch.randn(shape, generator=generator) * 0.05).bfloat16()
    if kind == "zeros":
        return torch.zeros(shape, dtype=torch.bfloat16)
    exponents = torch.randint(1, 255, shape, generator=generator)
    if kind == "a few of other sizes":
        exponents = torch.where(torch.rand(shape, generator=generator) < 0.01, exponents, 120)
    elif kind == "one more size than a table has":
        exponents = 100 + 2 * torch.randint(0, 9, shape, generator=generator)
    signs, mantissas = (torch.randint(0, most, shape, generator=generator) for most in (2, 128))
    return bfloat16((signs << 15) + (exponents << 7) + mantissas)


@pytest.mark.parametrize(
    "kind", ["trained", "zeros", "all sizes", "a few of other sizes", "one more size than a table has"]
)
@pytest.mark.parametrize("isa", isa_params())
def test_products_with_unit_vectors_are_the_weights(isa: str, kind: str) -> None:
    library = load_library(isa)
    assert library is not None
    weight = weights(kind)
    layer = NativeLinear(library, LinearWeights(weight), "bf16", 2)
    units = torch.eye(INPUTS)
    for rows in ROWS:
        some = units[: max(3 * rows, 16)]
        said = torch.cat([layer(part) for part in some.split(rows)])
        assert torch.equal(said, weight.float().T[: len(some)])


@pytest.mark.parametrize("kind", ["trained", "a few of other sizes"])
@pytest.mark.parametrize("isa", isa_params())
def test_a_row_has_the_same_bits_among_any_number(isa: str, kind: str) -> None:
    library = load_library(isa)
    assert library is not None
    layer = NativeLinear(library, LinearWeights(weights(kind)), "bf16", 2)
    rows = torch.randn(40, INPUTS, generator=torch.Generator().manual_seed(4))
    alone = torch.cat([layer(row) for row in rows.split(1)])
    for count in range(2, len(rows) + 1):
        assert torch.equal(layer(rows[:count]), alone[:count]), count


@pytest.mark.parametrize("isa", isa_params(("amx", "amx-emulated", "avx512bf16")))
def test_packed_weights_take_three_quarters(isa: str) -> None:
    library = load_library(isa)
    assert library is not None
    layers = [
        NativeLinear(library, LinearWeights(weights("trained").float().repeat(8, 1)), precision, 1)  # type: ignore[arg-type]
        for precision in ("bf16", "fp32")
    ]
    assert layers[0].nbytes == layers[1].nbytes * 3 // 8
