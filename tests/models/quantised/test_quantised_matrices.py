"""Quantised matrices are read as the values that they define, to the bit.

The readers of bitsandbytes and compressed-tensors were also held against those packages themselves (docs/loading.md).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from packers import awq, gptq, named, opened, packed
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from headstart.errors import CheckpointError


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def check(directory: Path, tensors: dict[str, Tensor], matrix: Tensor, **settings: Any) -> None:
    weights = opened(directory, named("m", tensors) | {"other.bias": torch.ones(3)}, **settings)
    assert weights.shapes() == {"m.weight": tuple(matrix.shape), "other.bias": (3,)}
    assert torch.equal(weights.read("m.weight"), matrix)
    assert torch.equal(weights.read("other.bias"), torch.ones(3))
    assert weights.stored("m.weight").holds_weights
    assert 4 <= weights.stored_bits("m.weight") <= 13


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("mixed", [False, True])
def test_gptq(tmp_path: Path, generator: torch.Generator, bits: int, group: int, mixed: bool) -> None:
    tensors, matrix = gptq(generator, 24, 128, bits, group, mixed)
    check(tmp_path, tensors, matrix, quant_method="gptq", bits=bits, group_size=group, desc_act=mixed)


def test_gptq_of_the_second_format_and_without_an_index(tmp_path: Path, generator: torch.Generator) -> None:
    tensors, matrix = gptq(generator, 16, 64, 4, 32, version=2)
    del tensors["g_idx"]
    check(tmp_path, tensors, matrix, quant_method="gptq", bits=4, checkpoint_format="gptq_v2")


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq(tmp_path: Path, generator: torch.Generator, group: int) -> None:
    tensors, matrix = awq(generator, 24, 128, group)
    check(tmp_path, tensors, matrix, quant_method="awq", bits=4, group_size=group, version="gemm")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_packed_compressed_tensors(tmp_path: Path, generator: torch.Generator, bits: int, zeros: bool) -> None:
    tensors, matrix = packed(generator, 24, 128, bits, 32, zeros)
    groups = {"group_0": {"weights": {"num_bits": bits, "type": "int", "strategy": "group"}}}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    check(tmp_path, tensors, matrix, **settings)


@pytest.mark.parametrize("shape", [(), (24,), (24, 1), (24, 4)])
def test_compressed_tensors_in_bytes(tmp_path: Path, generator: torch.Generator, shape: tuple[int, ...]) -> None:
    levels = torch.randint(-128, 128, (24, 128), generator=generator).to(torch.int8)
    scale = torch.rand(shape, generator=generator) + 0.1
    spread = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    matrix = levels.float() * spread.repeat_interleave(128 // spread.shape[1], 1)
    tensors = {"weight": levels, "weight_scale": scale}
    check(tmp_path, tensors, matrix, quant_method="compressed-tensors", format="int-quantized")


@pytest.mark.parametrize(
    ("method", "leaf", "shape", "scales", "block"),
    [
        ("fp8", "weight_scale_inv", (256, 128), (2, 1), (128, 128)),
        ("fp8", "weight_scale_inv", (130, 200), (2, 2), (128, 128)),
        ("fp8", "weight_scale", (24, 64), (), (24, 64)),
        ("fp8", "weight_scale", (24, 64), (24, 1), (1, 64)),
        ("compressed-tensors", "weight_scale", (24, 64), (24, 1), (1, 64)),
        ("compressed-tensors", "weight_scale", (24, 64), (1,), (24, 64)),
    ],
)
def test_eight_bit_floats(
    tmp_path: Path,
    generator: torch.Generator,
    method: str,
    leaf: str,
    shape: tuple[int, int],
    scales: tuple[int, ...],
    block: tuple[int, int],
) -> None:
    numbers = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(scales, generator=generator) + 0.1
    matrix = torch.empty(shape)
    grid = scale.reshape(-1, 1) if scale.ndim < 2 else scale
    for i in range(shape[0]):
        for j in range(shape[1]):
            matrix[i, j] = numbers[i, j].float() * grid[i // block[0], j // block[1]]
    settings: dict[str, Any] = {"quant_method": method, "activation_scheme": "static"}
    if method == "compressed-tensors":
        settings["format"] = "float-quantized"
    check(tmp_path, {"weight": numbers, leaf: scale, "input_scale": torch.ones(())}, matrix, **settings)


@pytest.mark.parametrize("nested", [False, True])
def test_four_bits_of_bitsandbytes(tmp_path: Path, generator: torch.Generator, nested: bool) -> None:
    shape, block = (24, 96), 64
    count = math.prod(shape)
    values = torch.rand(16, generator=generator) * 2 - 1
    levels = torch.randint(0, 16, (count,), generator=generator)
    absmax = torch.rand(count // block, generator=generator)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "shape": list(shape), "dtype": "float16"}
    tensors = {
        "weight": (levels[0::2] * 16 + levels[1::2]).to(torch.uint8)[:, None],
        "weight.quant_map": values,
        "weight.absmax": absmax,
    }
    if nested:
        codes = torch.randint(0, 256, (count // block,), generator=generator)
        table, over = torch.rand(256, generator=generator), torch.rand(-(-len(codes) // 16), generator=generator)
        absmax = torch.stack([table[code] * over[place // 16] + 0.25 for place, code in enumerate(codes)])
        state |= {"nested_blocksize": 16, "nested_offset": 0.25, "nested_dtype": "float32"}
        tensors |= {"weight.absmax": codes.to(torch.uint8)}
        tensors |= {"weight.nested_absmax": over, "weight.nested_quant_map": table}
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    matrix = torch.stack([values[level] * absmax[place // block] for place, level in enumerate(levels)]).reshape(shape)
    check(tmp_path, tensors, matrix, quant_method="bitsandbytes", load_in_4bit=True)


def test_eight_bits_of_bitsandbytes(tmp_path: Path, generator: torch.Generator) -> None:
    levels = torch.randint(-127, 128, (24, 64), generator=generator).to(torch.int8)
    largest = torch.rand(24, generator=generator) + 1
    matrix = levels.float() * (largest / 127)[:, None]
    tensors = {"weight": levels, "SCB": largest, "weight_format": torch.zeros((), dtype=torch.uint8)}
    check(tmp_path, tensors, matrix, quant_method="bitsandbytes", load_in_8bit=True)


def test_experts_in_mxfp4_are_transformers(tmp_path: Path, generator: torch.Generator) -> None:
    blocks = torch.randint(0, 256, (2, 12, 3, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(118, 130, (2, 12, 3), generator=generator).to(torch.uint8)
    weights = opened(tmp_path, {"e.up_blocks": blocks, "e.up_scales": scales}, quant_method="mxfp4")
    wanted = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(weights.read("e.up"), wanted)
    assert weights.shapes() == {"e.up": (2, 96, 12)}


BITS = {"quant_method": "gptq", "bits": 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "hqq"}, "quantised by 'hqq', which is not read; choose one of gptq, awq"),
        ({"quant_method": "qptq"}, "did you mean 'gptq'"),
        ({"bits": 4}, "quantised by None"),
        ({"quant_method": "gptq", "bits": 3}, "bits is 3, but must be 2 or 4 or 8"),
        (BITS | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized'"),
        ({"quant_method": "fp8"}, "none of its tensors is"),
    ],
)
def test_what_is_not_read_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    tensors, _ = gptq(torch.Generator().manual_seed(0), 8, 32, 4, 32)
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path, named("m", tensors), **settings)


@pytest.mark.parametrize(
    ("leaf", "tensor", "message"),
    [
        ("qweight", torch.zeros(4, dtype=torch.int32), "which is no matrix"),
        ("qweight", torch.zeros(4, 9, dtype=torch.int32), r"has scales of shape"),
        ("qzeros", torch.zeros(1, 2, dtype=torch.int32), r"has qzeros of shape \[1, 2\] instead of \[1, 1\]"),
        ("scales", torch.zeros(1, 8, dtype=torch.int32), "has scales of type I32"),
        ("g_idx", torch.zeros(5, dtype=torch.int32), "has g_idx of shape"),
        ("qzeros", None, "lacks qzeros"),
        ("scales", None, "lacks scales"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, leaf: str, tensor: Tensor | None, message: str) -> None:
    tensors, _ = gptq(torch.Generator().manual_seed(0), 8, 32, 4, 32)
    del tensors[leaf]
    if tensor is not None:
        tensors[leaf] = tensor
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path, named("m", tensors), **BITS)


def test_groups_that_are_not_there_are_refused_when_they_are_read(tmp_path: Path) -> None:
    tensors, _ = gptq(torch.Generator().manual_seed(0), 8, 32, 4, 32)
    tensors["g_idx"] = torch.full((32,), 3, dtype=torch.int32)
    weights = opened(tmp_path, named("m", tensors), **BITS)
    with pytest.raises(CheckpointError, match="names groups which are not there"):
        weights.read("m.weight")
