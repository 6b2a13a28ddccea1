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
from packers import awq, gptq, named, opened, packed, write
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from headstart.errors import CheckpointError
from headstart.models.quantised.opening import dequantised, quantised_by
from headstart.models.safetensors_files import SafetensorsFiles


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def check(directory: Path, tensors: dict[str, Tensor], matrix: Tensor, **settings: Any) -> None:
    weights = opened(directory, named("m", tensors) | {"other.bias": torch.ones(3)}, **settings)
    assert weights.shapes() == {"m.weight": tuple(matrix.shape), "other.bias": (3,)}
    assert torch.equal(weights.read("m.weight"), matrix)
    assert torch.equal(weights.read("other.bias"), torch.ones(3))
    assert weights.stored("m.weight").holds_weights
    assert 2 <= weights.stored_bits("m.weight") <= 13


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("mixed", [False, True])
def test_gptq(tmp_path: Path, generator: torch.Generator, bits: int, group: int, mixed: bool) -> None:
    tensors, matrix = gptq(generator, 32, 128, bits, group, mixed)
    check(tmp_path, tensors, matrix, quant_method="gptq", bits=bits, group_size=group, desc_act=mixed)


def test_gptq_of_the_second_format_and_without_an_index(tmp_path: Path, generator: torch.Generator) -> None:
    tensors, matrix = gptq(generator, 16, 64, 4, 32, version=2)
    del tensors["g_idx"]
    check(tmp_path, tensors, matrix, quant_method="gptq", bits=4, checkpoint_format="gptq_v2")


@pytest.mark.parametrize(
    ("method", "key", "patterns"),
    [
        ("gptq", "dynamic", [r"-:.*\.gate$", r"+:layers\.1\..*", r".*\.down"]),
        ("auto-round", "extra_config", ["layers.0.gate", "layers.1.up", r".*\.down"]),
    ],
)
def test_modules_with_bits_of_their_own(
    tmp_path: Path, generator: torch.Generator, method: str, key: str, patterns: list[str]
) -> None:
    bits = {"layers.0.up": 4, "layers.1.up": 8, "layers.0.down": 3}
    made = {name: gptq(generator, 32, 64, width, 32, mixed=True) for name, width in bits.items()}
    stored = {key: value for name, (tensors, _) in made.items() for key, value in named(name, tensors).items()}
    gate = torch.randn(32, 64, generator=generator)
    own: dict[str, Any] = dict(zip(patterns, ({}, {"bits": 8}, {"bits": 3}), strict=True))
    settings = {"quant_method": method, "bits": 4, key: own}
    weights = opened(tmp_path, stored | {"layers.0.gate.weight": gate}, **settings)
    for name, (_, matrix) in made.items():
        assert torch.equal(weights.read(f"{name}.weight"), matrix)
    assert torch.equal(weights.read("layers.0.gate.weight"), gate)


@pytest.mark.parametrize("packing", ["auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq", None])
def test_auto_round(tmp_path: Path, generator: torch.Generator, packing: str | None) -> None:
    if packing == "auto_round:auto_awq":
        tensors, matrix = awq(generator, 24, 128, 32)
    else:
        tensors, matrix = gptq(generator, 24, 128, 4, 32, version=2 if packing == "auto_round:gptqmodel" else 1)
        del tensors["g_idx"]
    named_so = {} if packing is None else {"packing_format": packing}
    check(tmp_path, tensors, matrix, quant_method="intel/auto-round", bits=4, group_size=32, sym=False, **named_so)


@pytest.mark.parametrize(
    ("file", "settings"),
    [
        ("quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": True}),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}),
        ("hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}),
    ],
)
def test_settings_in_a_file_of_their_own(
    tmp_path: Path, generator: torch.Generator, file: str, settings: dict[str, Any]
) -> None:
    if file == "hf_quant_config.json":
        numbers = torch.randn(24, 64, generator=generator).to(torch.float8_e4m3fn)
        tensors, matrix = {"weight": numbers, "weight_scale": torch.tensor(0.5)}, numbers.float() * 0.5
    elif file == "quant_config.json":
        tensors, matrix = awq(generator, 24, 64, 32)
    else:
        tensors, matrix = gptq(generator, 24, 64, 4, 32, mixed=True)
    (tmp_path / file).write_text(json.dumps(settings))
    write(tmp_path, named("m", tensors))
    assert torch.equal(dequantised(SafetensorsFiles(tmp_path), {}, tmp_path).read("m.weight"), matrix)
    # Of a folder that is not quantised, such a file says nothing.
    write(tmp_path, {"m.weight": matrix})
    assert torch.equal(dequantised(SafetensorsFiles(tmp_path), {}, tmp_path).read("m.weight"), matrix)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq(tmp_path: Path, generator: torch.Generator, bits: int, group: int) -> None:
    tensors, matrix = awq(generator, 24, 128, group, bits)
    check(tmp_path, tensors, matrix, quant_method="awq", bits=bits, group_size=group, version="gemm")


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


def own_blocks(directory: Path, tensors: dict[str, Tensor], kind: str, size: int, **settings: Any) -> Tensor:
    """uint8 [24, 4, byte of a block]: what a backend keeps of a module of 24 x 128."""
    stored = opened(directory, named("m", tensors), **settings).stored("m.weight")
    assert stored.type == kind
    assert stored.make is not None
    return torch.from_numpy(stored.make(None)).view(24, 4, size)


def test_eight_bits_of_awq_keep_their_own_numbers(tmp_path: Path, generator: torch.Generator) -> None:
    tensors, matrix = awq(generator, 24, 128, 32, 8)
    settings = {"quant_method": "awq", "bits": 8, "version": "gemm"}
    blocks = own_blocks(tmp_path, tensors, "INT8/32", 35, **settings)
    scales = blocks[..., :2].contiguous().view(torch.float16).float()
    assert torch.equal((scales * (blocks[..., 3:].float() - blocks[..., 2:3])).flatten(1), matrix)


def float4_numbers(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """uint8 [24, 64] and the numbers [24, 128], one by one from sign, exponent and mantissa."""
    octets = torch.randint(0, 256, (24, 64), generator=generator)
    numbers = []
    for octet in octets.flatten().tolist():
        for code in (octet & 15, octet >> 4):
            exponent, half = code >> 1 & 3, code & 1
            size = (1 + half / 2) * 2.0 ** (exponent - 1) if exponent else half / 2
            numbers.append(-size if code & 8 else size)
    return octets.to(torch.uint8), torch.tensor(numbers).view(24, 128)


@pytest.mark.parametrize("method", ["compressed-tensors", "modelopt"])
def test_nvfp4(tmp_path: Path, generator: torch.Generator, method: str) -> None:
    octets, numbers = float4_numbers(generator)
    scales = (torch.rand(24, 8, generator=generator) * 400).to(torch.float8_e4m3fn)
    if method == "modelopt":
        other = torch.tensor(0.0037)
        tensors = {"weight": octets, "weight_scale": scales, "weight_scale_2": other, "input_scale": torch.tensor(2.0)}
        settings, second = {"quant_algo": "NVFP4"}, scales.float() * other
    else:
        other = torch.tensor([271.3])
        tensors = {"weight_packed": octets, "weight_scale": scales, "weight_global_scale": other}
        tensors["input_global_scale"] = torch.tensor([2.0])
        settings, second = {"format": "nvfp4-pack-quantized"}, scales.float() * (1 / other)
    matrix = torch.stack([numbers[:, i] * second[:, i // 16] for i in range(128)], 1)
    check(tmp_path, tensors, matrix, quant_method=method, **settings)


def test_float8_and_experts_of_4_bits_with_exponents_as_scales(tmp_path: Path, generator: torch.Generator) -> None:
    """As DeepSeek-V4 was released."""
    octets, numbers = float4_numbers(generator)
    exponents = torch.randint(110, 130, (24, 4), generator=generator)
    matrix = torch.stack([numbers[:, i] * 2.0 ** (exponents[:, i // 32] - 127) for i in range(128)], 1)
    scales = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    check(tmp_path, {"weight": octets.view(torch.int8), "scale": scales}, matrix, **settings)
    float8 = torch.randn(256, 128, generator=generator).to(torch.float8_e4m3fn)
    exponents = torch.tensor([[120], [129]])
    matrix = float8.float() * (2.0 ** (exponents - 127)).repeat_interleave(128, 0)
    scales = exponents.to(torch.uint8).view(torch.float8_e8m0fnu)
    check(tmp_path, {"weight": float8, "scale": scales}, matrix, **settings)


def test_packed_mxfp4(tmp_path: Path, generator: torch.Generator) -> None:
    octets, numbers = float4_numbers(generator)
    exponents = torch.randint(110, 130, (24, 4), generator=generator)
    matrix = torch.stack([numbers[:, i] * 2.0 ** (exponents[:, i // 32] - 127) for i in range(128)], 1)
    tensors = {"weight_packed": octets, "weight_scale": exponents.to(torch.uint8)}
    settings = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
    check(tmp_path, tensors, matrix, **settings)
    # As GGUF has them: an exponent, then 16 bytes of two numbers each, 16 places apart.
    blocks = own_blocks(tmp_path, tensors, "MXFP4", 17, **settings)
    codes = torch.cat([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1).flatten(1)
    assert torch.equal(codes, torch.stack([octets & 15, octets >> 4], -1).flatten(1))
    assert torch.equal(blocks[..., 0], tensors["weight_scale"])


@pytest.mark.parametrize(
    ("leaf", "tensor", "message"),
    [
        ("weight_scale", torch.zeros(24, 3).to(torch.float8_e4m3fn), "has weight_scale of shape"),
        ("weight_scale", torch.zeros(24, 4), "has weight_scale of type F32 instead of F8_E4M3"),
        ("weight_scale_2", torch.zeros(24), "instead of one number"),
        ("weight", torch.zeros(24, 4, dtype=torch.uint8), "which are no multiple of 16"),
        ("weight_scale_2", None, "lacks weight_scale_2"),
    ],
)
def test_nvfp4_that_does_not_fit_is_named(tmp_path: Path, leaf: str, tensor: Tensor | None, message: str) -> None:
    tensors = {"weight": torch.zeros(24, 32, dtype=torch.uint8), "weight_scale_2": torch.tensor(1.0)}
    tensors["weight_scale"] = torch.ones(24, 4).to(torch.float8_e4m3fn)
    del tensors[leaf]
    if tensor is not None:
        tensors[leaf] = tensor
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path, named("m", tensors), quant_method="modelopt", quant_algo="NVFP4")


def test_experts_in_mxfp4_are_transformers(tmp_path: Path, generator: torch.Generator) -> None:
    blocks = torch.randint(0, 256, (2, 12, 3, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(118, 130, (2, 12, 3), generator=generator).to(torch.uint8)
    weights = opened(tmp_path, {"e.up_blocks": blocks, "e.up_scales": scales}, quant_method="mxfp4")
    wanted = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    assert torch.equal(weights.read("e.up"), wanted)
    assert weights.shapes() == {"e.up": (2, 96, 12)}


BITS = {"quant_method": "gptq", "bits": 4}


@pytest.mark.parametrize("settings", [{}, None])
def test_no_settings_are_no_scheme(settings: dict[str, Any] | None, tmp_path: Path) -> None:
    """As some programs leave them behind."""
    weights = SafetensorsFiles(write(tmp_path, {"m.weight": torch.ones(2, 2)}))
    for config in ({"quantization_config": settings}, {"text_config": {"quantization_config": settings}}):
        assert dequantised(weights, config, tmp_path) is weights
        assert quantised_by(weights, config, tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quant_method": "hqq"}, "quantised by 'hqq', which is not read; choose one of gptq, awq"),
        ({"quant_method": "qptq"}, "did you mean 'gptq'"),
        ({"bits": 4}, "quantised by None"),
        ({"quant_method": "gptq", "bits": 5}, "bits is 5, but must be 2 or 3 or 4 or 8"),
        (BITS | {"dynamic": {"(": {"bits": 8}}}, "dynamic must be an object of settings by regular expressions"),
        (BITS | {"dynamic": ["m"]}, "dynamic must be an object"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:fp8"}, "packing_format is 'auto_round:fp8'"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'"),
        (BITS | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version is 'gemv'"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, "format is 'marlin-24'"),
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
