"""Random modules of quantised folders, one for each type of rows that a backend may keep, and tiny models of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headstart.models.quantised.rows import FOUR_BIT_FLOATS

Module = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by the last part of their names; the folder's ``quantization_config``."""


def words(levels: Tensor, bits: int) -> Tensor:
    """int32 [row, word], the lowest bits first; a level may lie in two words."""
    apart = (levels.long()[..., None] >> torch.arange(bits)) & 1
    whole = (apart.flatten(1).unflatten(1, (-1, 32)) << torch.arange(32)).sum(-1)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).int()


class Maker:
    """Random modules of one generator."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def levels(self, rows: int, columns: int, bits: int) -> Tensor:
        """Bell-shaped, as weights are."""
        middle, spread = (1 << (bits - 1)), (1 << bits) / 6
        drawn = torch.randn(rows, columns, generator=self.generator) * spread + middle
        return drawn.round().clamp(0, (1 << bits) - 1).long()

    def zeros(self, rows: int, columns: int, bits: int) -> Tensor:
        middle = 1 << (bits - 1)
        drawn = torch.randint(-2, 3, (rows, columns), generator=self.generator)
        return (middle + drawn * max(middle // 8, 1)).clamp(1, (1 << bits) - 1)

    def scales(self, *shape: int, bits: int, inputs: int) -> Tensor:
        drawn = torch.rand(shape, generator=self.generator) + 0.5
        return drawn * 6 / (1 << bits) * inputs**-0.5

    def gptq(self, outputs: int, inputs: int, bits: int, group: int) -> Module:
        groups = inputs // group
        tensors = {
            "qweight": words(self.levels(outputs, inputs, bits), bits).T,
            "qzeros": words(self.zeros(groups, outputs, bits) - 1, bits),
            "scales": self.scales(groups, outputs, bits=bits, inputs=inputs).half(),
            "g_idx": torch.arange(inputs).int() // group,
        }
        return tensors, {"quant_method": "gptq", "bits": bits, "group_size": group}

    def awq(self, outputs: int, inputs: int, group: int) -> Module:
        groups, order = inputs // group, [0, 2, 4, 6, 1, 3, 5, 7]

        def mixed(levels: Tensor) -> Tensor:
            return words(levels.unflatten(1, (-1, 8))[..., order].flatten(1), 4)

        tensors = {
            "qweight": mixed(self.levels(inputs, outputs, 4)),
            "qzeros": mixed(self.zeros(groups, outputs, 4)),
            "scales": self.scales(groups, outputs, bits=4, inputs=inputs).half(),
        }
        return tensors, {"quant_method": "awq", "bits": 4, "version": "gemm"}

    def packed(self, outputs: int, inputs: int, bits: int, group: int, zeros: bool) -> Module:
        groups = inputs // group
        tensors = {
            "weight_packed": words(self.levels(outputs, inputs, bits), bits),
            "weight_scale": self.scales(outputs, groups, bits=bits, inputs=inputs).bfloat16(),
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if zeros:
            tensors["weight_zero_point"] = words(self.zeros(outputs, groups, bits).T, bits).T
        weights = {"weights": {"num_bits": bits, "type": "int", "strategy": "group"}}
        settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": weights}}
        return tensors, settings

    def bytes(self, outputs: int, inputs: int, groups: int = 1) -> Module:
        levels = self.levels(outputs, inputs, 8) - 128
        scales = self.scales(outputs, groups, bits=8, inputs=inputs)
        tensors = {"weight": levels.to(torch.int8), "weight_scale": scales}
        return tensors, {"quant_method": "compressed-tensors", "format": "int-quantized"}

    def byte_rows(self, outputs: int, inputs: int) -> Module:
        levels = (self.levels(outputs, inputs, 8) - 128).to(torch.int8)
        tensors = {"weight": levels, "SCB": 127 * self.scales(outputs, bits=8, inputs=inputs)}
        return tensors, {"quant_method": "bitsandbytes", "load_in_8bit": True}

    def four_bit_floats(self, kind: str, outputs: int, inputs: int, nested: bool) -> Module:
        count = outputs * inputs // 64
        levels = torch.randint(0, 16, (outputs * inputs,), generator=self.generator)
        largest = (torch.rand(count, generator=self.generator) + 0.5) * 2 * inputs**-0.5
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "shape": [outputs, inputs]}
        tensors = {
            "weight": (levels[0::2] * 16 + levels[1::2]).to(torch.uint8)[:, None],
            "weight.quant_map": FOUR_BIT_FLOATS[kind],
            "weight.absmax": largest,
        }
        if nested:
            table = torch.linspace(-1, 1, 256)
            state |= {"nested_blocksize": 256, "nested_offset": float(largest.mean()), "nested_dtype": "float32"}
            tensors["weight.absmax"] = torch.randint(0, 256, (count,), generator=self.generator).to(torch.uint8)
            over = (torch.rand(-(-count // 256), generator=self.generator) + 0.5) * float(largest.mean()) / 2
            tensors |= {"weight.nested_absmax": over, "weight.nested_quant_map": table}
        description = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[f"weight.quant_state.bitsandbytes__{kind}"] = description
        return tensors, {"quant_method": "bitsandbytes", "load_in_4bit": True}

    def float8(self, outputs: int, inputs: int, in_blocks: bool) -> Module:
        # Of every size, those below the least normal number too.
        numbers = torch.randn(outputs, inputs, generator=self.generator) * 30
        numbers[:, ::7] *= 1e-4
        scales = (-(-outputs // 128), -(-inputs // 128)) if in_blocks else (outputs, 1)
        units = (torch.rand(scales, generator=self.generator) + 0.5) / 30 * inputs**-0.5
        tensors = {"weight": numbers.to(torch.float8_e4m3fn), "weight_scale_inv": units}
        return tensors, {"quant_method": "fp8", "weight_block_size": [128, 128] if in_blocks else None}

    def nvfp4(self, outputs: int, inputs: int, divides: bool) -> Module:
        """Scales of every size, those below the least normal number too."""
        octets = torch.randint(0, 256, (outputs, inputs // 2), generator=self.generator).to(torch.uint8)
        scales = torch.rand(outputs, inputs // 16, generator=self.generator) * 300
        scales[:, ::5] *= 1e-4
        factor = torch.tensor(inputs**-0.5 / 500)
        tensors = {"weight_scale": scales.to(torch.float8_e4m3fn)}
        if divides:
            tensors |= {"weight_packed": octets, "weight_global_scale": 1 / factor[None]}
            return tensors, {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}
        tensors |= {"weight": octets, "weight_scale_2": factor}
        return tensors, {"quant_method": "modelopt", "quant_algo": "NVFP4"}


Make = Callable[[Maker, int, int], Module]

MAKERS: dict[str, Make] = {
    "INT4/32": lambda maker, outputs, inputs: maker.awq(outputs, inputs, 32),
    "INT4/64": lambda maker, outputs, inputs: maker.packed(outputs, inputs, 4, 64, True),
    "INT4/128": lambda maker, outputs, inputs: maker.gptq(outputs, inputs, 4, 128),
    "INT4/256": lambda maker, outputs, inputs: maker.packed(outputs, inputs, 4, inputs, False),
    "INT8/32": lambda maker, outputs, inputs: maker.packed(outputs, inputs, 8, 32, False),
    "INT8/128": lambda maker, outputs, inputs: maker.gptq(outputs, inputs, 8, 128),
    "INT8/ROW": lambda maker, outputs, inputs: maker.byte_rows(outputs, inputs),
    "NF4": lambda maker, outputs, inputs: maker.four_bit_floats("nf4", outputs, inputs, True),
    "FP4": lambda maker, outputs, inputs: maker.four_bit_floats("fp4", outputs, inputs, False),
    "NVFP4/16": lambda maker, outputs, inputs: maker.nvfp4(outputs, inputs, False),
    "FP8": lambda maker, outputs, inputs: maker.float8(outputs, inputs, False),
    "FP8/128": lambda maker, outputs, inputs: maker.float8(outputs, inputs, True),
}
"""A module [out, in] of each type."""


def named(module: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{module}.{leaf}": tensor.contiguous().clone() for leaf, tensor in tensors.items()}


def write_folder(
    directory: Path,
    model: torch.nn.Module,
    make: Make,
    seed: int,
    table: bool = False,
) -> Path:
    """A model's folder with the matrices of its layers made anew, and its table of embeddings if asked for."""
    model.save_pretrained(directory)  # type: ignore[operator]
    tensors, maker = load_file(directory / "model.safetensors"), Maker(seed)
    settings: dict[str, Any] = {}
    endings = ("_proj.weight", "embed_tokens.weight") if table else ("_proj.weight",)
    for name in [name for name in tensors if name.endswith(endings)]:
        outputs, inputs = tensors.pop(name).shape
        module, settings = make(maker, outputs, inputs)
        tensors |= named(name.removesuffix(".weight"), module)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return directory


def write_mxfp4_folder(directory: Path, model: torch.nn.Module, seed: int) -> Path:
    """A gpt-oss whose experts are in MXFP4, as it was released."""
    model.save_pretrained(directory)  # type: ignore[operator]
    tensors, generator = load_file(directory / "model.safetensors"), torch.Generator().manual_seed(seed)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(121, 125, blocks.shape[:3], dtype=torch.uint8, generator=generator)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    return directory
