"""Packs small matrices as the quantisers' own programs do, one weight at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from headstart.models.derived import OpenWeights
from headstart.models.quantised.opening import dequantised
from headstart.models.safetensors_files import SafetensorsFiles


def words(levels: list[list[int]], bits: int, order: list[int] | None = None) -> Tensor:
    """int32 [row, word]: the levels of each row one after the other, the lowest bits first.

    ``order``: which of a word's levels comes first, second, ...
    """
    count = 32 // bits
    rows = []
    if bits == 3:
        return torch.tensor([three_bit_words(row) for row in levels], dtype=torch.int32)
    for row in levels:
        packed = []
        for start in range(0, len(row), count):
            word = 0
            for place, which in enumerate(order or range(count)):
                word |= (row[start + which] & ((1 << bits) - 1)) << (place * bits)
            packed.append(word - (1 << 32) if word >= 1 << 31 else word)
        rows.append(packed)
    return torch.tensor(rows, dtype=torch.int32)


def three_bit_words(row: list[int]) -> list[int]:
    """Three words for 32 levels, as AutoGPTQ fills them: the eleventh and the twenty-second lie in two."""
    packed = []
    for start in range(0, len(row), 32):
        first, second, third = row[start : start + 11], row[start + 11 : start + 22], row[start + 22 : start + 32]
        one = sum(level << 3 * place for place, level in enumerate(first[:10])) | (first[10] & 3) << 30
        two = first[10] >> 2 | sum(level << 3 * place + 1 for place, level in enumerate(second[:10]))
        two |= (second[10] & 1) << 31
        three = second[10] >> 1 | sum(level << 3 * place + 2 for place, level in enumerate(third))
        packed += [word - (1 << 32) if word >= 1 << 31 else word for word in (one, two, three)]
    return packed


def levels_of(generator: torch.Generator, rows: int, columns: int, bits: int) -> Tensor:
    return torch.randint(0, 1 << bits, (rows, columns), generator=generator)


def scales_of(generator: torch.Generator, *shape: int, size: float) -> Tensor:
    return (size * (torch.rand(shape, generator=generator) * 0.1 + 0.01)).half()


def gptq(
    generator: torch.Generator,
    outputs: int,
    inputs: int,
    bits: int,
    group: int,
    mixed: bool = False,
    version: int = 1,
    size: float = 1.0,
) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a module, and the matrix that they define, float32 [out, in]."""
    groups = inputs // group
    levels = levels_of(generator, inputs, outputs, bits)
    zeros = levels_of(generator, groups, outputs, bits)
    scales = scales_of(generator, groups, outputs, size=size)
    of_group = torch.arange(inputs) // group
    if mixed:
        of_group = of_group[torch.randperm(inputs, generator=generator)]
    stored = (zeros - 1) % (1 << bits) if version == 1 else zeros
    tensors = {
        "qweight": words(levels.T.tolist(), bits).T,
        "qzeros": words(stored.tolist(), bits),
        "scales": scales,
        "g_idx": of_group.int(),
    }
    matrix = torch.empty(outputs, inputs)
    for i in range(inputs):
        matrix[:, i] = scales[of_group[i]].float() * (levels[i] - zeros[of_group[i]])
    return tensors, matrix


def awq(
    generator: torch.Generator, outputs: int, inputs: int, group: int, bits: int = 4, size: float = 1.0
) -> tuple[dict[str, Tensor], Tensor]:
    """Likewise."""
    groups, order = inputs // group, [0, 2, 4, 6, 1, 3, 5, 7] if bits == 4 else [0, 2, 1, 3]
    levels, zeros = levels_of(generator, inputs, outputs, bits), levels_of(generator, groups, outputs, bits)
    scales = scales_of(generator, groups, outputs, size=size)
    tensors = {
        "qweight": words(levels.tolist(), bits, order),
        "qzeros": words(zeros.tolist(), bits, order),
        "scales": scales,
    }
    matrix = torch.empty(outputs, inputs)
    for i in range(inputs):
        matrix[:, i] = scales[i // group].float() * (levels[i] - zeros[i // group])
    return tensors, matrix


def packed(
    generator: torch.Generator, outputs: int, inputs: int, bits: int, group: int, zeros: bool, size: float = 1.0
) -> tuple[dict[str, Tensor], Tensor]:
    """Likewise, of compressed-tensors."""
    groups, lowest = inputs // group, 1 << (bits - 1)
    levels = levels_of(generator, outputs, inputs, bits) - lowest
    zero = levels_of(generator, outputs, groups, bits) - lowest if zeros else torch.zeros(outputs, groups).long()
    scales = scales_of(generator, outputs, groups, size=size)
    tensors = {
        "weight_packed": words((levels + lowest).tolist(), bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([outputs, inputs]),
    }
    if zeros:
        tensors["weight_zero_point"] = words((zero + lowest).T.tolist(), bits).T
    matrix = torch.empty(outputs, inputs)
    for i in range(inputs):
        matrix[:, i] = scales[:, i // group].float() * (levels[:, i] - zero[:, i // group])
    return tensors, matrix


def opened(directory: Path, tensors: dict[str, Tensor], **settings: Any) -> OpenWeights:
    """The tensors of a folder with this ``quantization_config``."""
    write(directory, tensors)
    return dequantised(SafetensorsFiles(directory), {"quantization_config": settings}, directory)


def write(directory: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def named(module: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{module}.{leaf}": tensor for leaf, tensor in tensors.items()}
