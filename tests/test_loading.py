"""What a model is computed in where nobody says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headstart.loading import create_backend
from headstart.models.weights import DecoderWeights
from headstart.native.loader import load_library
from native.native_cases import random_weights, small_config


def stored_in(bits: float, head_bits: float) -> DecoderWeights:
    weights = random_weights(small_config())
    layers = [
        replace(
            layer,
            **{
                name: replace(getattr(layer, name), stored_bits=bits)  # type: ignore[arg-type]
                for name in ("qkv", "output", "up", "down")
            },
        )
        for layer in weights.layers
    ]
    return replace(weights, layers=tuple(layers), head=replace(weights.head, stored_bits=head_bits))


@pytest.mark.parametrize(
    ("bits", "head_bits", "in_blocks"),
    [
        (5.0, 8.5, "int4"),
        (4.5, 6.5625, "int4"),
        (5.0, 16.0, None),
        (5.5, 8.5, None),
        (8.5, 8.5, "blocks"),
        (8.5, 16.0, None),
        (16, 16, None),
    ],
    ids=["Q4_1 + Q8_0", "Q4_K + Q6_K", "Q4_1 + F16", "Q5_0", "Q8_0", "Q8_0 + F16", "BF16"],
)
def test_files_in_blocks_are_computed_as_they_are(bits: float, head_bits: float, in_blocks: str | None) -> None:
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    backend = create_backend(small_config(), stored_in(bits, head_bits))
    can = library.blocks_pay and (in_blocks == "int4" or library.multiplies_bytes)
    wanted = in_blocks if in_blocks and can else "bf16"
    assert backend.name == f"native-{library.isa}-{wanted}"
