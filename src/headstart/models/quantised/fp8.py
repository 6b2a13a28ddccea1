"""Folders in 8-bit floating-point numbers (E4M3, E5M2), as DeepSeek, transformers, vLLM and Neural Magic write them.

``weight`` float8 [out, in]; its scales as ``weight_scale_inv``, ``weight_scale`` or ``scale``: one for the tensor, one
for each output ([out] or [out, 1]), or one for each block ([out / rows, in / columns], 128 x 128 as a rule, the
last blocks perhaps partial). Weight = number * scale, in spite of the first name. Scales of activations
(``input_scale``) are no part of the model: activations are not rounded here.

MiMo-V2.5's queries, keys and values are in one matrix as several devices had it: a shard for each key head of layers
that see everything, [queries, keys, values] each, whose blocks begin anew (vLLM's pull requests 46755 and 57508).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.models.derived import Derived, OpenWeights, OwnRows
from headstart.models.quantised.parts import Found, Module, modules
from headstart.models.quantised.rows import float8_rows, float8_type

TYPES = ("F8_E4M3", "F8_E5M2")
_SCALES = ("weight_scale_inv", "weight_scale", "scale")
_FUSED = ".qkv_proj"
Places = tuple[Tensor, Tensor] | None
_IGNORED = ("input_scale", "activation_scale", "input_zero_point")


def read_fp8(weights: OpenWeights, settings: Mapping[str, Any]) -> Found:
    """The matrices of such a folder.

    Raises:
        CheckpointError: a module's tensors do not fit each other.
    """
    found = Found()
    block, fused = settings.get("weight_block_size"), settings.get("fused_qkv")
    for module in modules(weights, "weight"):
        name = next((leaf for leaf in _SCALES if leaf in module), None)
        if name is None or weights.stored(module.full("weight")).type not in TYPES:
            continue
        if isinstance(fused, Mapping) and module.name.endswith(_FUSED):
            _add_fused(found, module, name, block, fused)
        else:
            add_fp8(found, module, name, block)
    return found


def add_fp8(found: Found, module: Module, name: str, block: object = None) -> None:
    """One module with scales of this name, in blocks of this size where they are neither one nor one an output.

    Raises:
        CheckpointError: they do not fit.
    """
    shape, scales = module.matrix("weight"), module.shape(name)
    size = _block(module, shape, scales, block)
    module.require(name, scales, "F32", "F16", "BF16", "F8_E8M0")
    read = partial(_matrix, module, name, size)
    own = partial(_own_rows, module, name, size)
    bits = 8 + 32 * math.prod(scales) / max(math.prod(shape), 1)
    found.derived[module.full("weight")] = Derived(shape, "F8", bits, read, own_rows=own)
    found.used.update(module.full(leaf) for leaf in (name, *_IGNORED) if leaf in module)


def _add_fused(found: Found, module: Module, name: str, block: object, sizes: Mapping[str, Any]) -> None:
    """Three matrices of a sharded one. ``sizes``: the entries of ``config.json`` that count and measure heads.

    Raises:
        CheckpointError: they do not fit it.
    """
    keys = ("num_key_value_heads", "num_attention_heads", "head_dim", "v_head_dim")
    shards, heads, key, value = (told if isinstance(told := sizes.get(each), int) else 0 for each in keys)
    (outputs, inputs), (rows, columns) = module.matrix("weight"), _sizes(block) or (0, 0)
    fits = min(shards, heads, key, value, rows, columns) > 0 and outputs % shards == heads % shards == 0
    queries = heads // shards * key if fits else 0
    kv_heads, over = divmod(outputs // shards - queries, key + value) if fits else (0, 1)
    if kv_heads < 1 or over:
        raise module.fault(f"has weights {[outputs, inputs]}, which fit the heads of config.json in no known way")
    each = outputs // shards
    blocks = -(-each // rows)
    module.require(name, (shards * blocks, -(-inputs // columns)), "F32", "F16", "BF16")
    parts = {"q_proj": queries, "k_proj": kv_heads * key, "v_proj": kv_heads * value}
    first = 0
    for part, count in parts.items():
        within = torch.arange(first, first + count)
        chosen = (torch.arange(shards)[:, None] * each + within).flatten()
        scaled = (torch.arange(shards)[:, None] * blocks + within // rows).flatten()
        places, together = (chosen, scaled), math.gcd(rows, first, count)
        read = partial(_matrix, module, name, (rows, columns), places)
        own = partial(_own_rows, module, name, (together, columns), places)
        full = module.full("weight").replace(_FUSED, f".{part}")
        found.derived[full] = Derived((shards * count, inputs), "F8", 8 + 32 / (rows * columns), read, own_rows=own)
        first += count
    found.used.update(module.full(leaf) for leaf in ("weight", name, *_IGNORED) if leaf in module)


def _block(module: Module, shape: tuple[int, ...], scales: tuple[int, ...], block: object) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    outputs, inputs = shape
    if math.prod(scales) == 1:
        return outputs, inputs
    if scales in ((outputs,), (outputs, 1)):
        return 1, inputs
    if sizes := _sizes(block):
        rows, columns = sizes
        if scales == (-(-outputs // rows), -(-inputs // columns)):
            return rows, columns
    raise module.fault(f"has scales {list(scales)}, which fit its weights {list(shape)} in no known way")


def _sizes(block: object) -> tuple[int, int] | None:
    sizes = block if isinstance(block, list | tuple) else [128, 128]
    whole = len(sizes) == 2 and all(isinstance(each, int) and each > 0 for each in sizes)
    return (sizes[0], sizes[1]) if whole else None


def _matrix(module: Module, name: str, size: tuple[int, int], places: Places = None) -> Tensor:
    """float32 [out, in]."""
    weight, scales = _rows(module, name, size, places)
    return weight.float() * scales.repeat_interleave(size[1], 1)[:, : weight.shape[1]]


def _rows(module: Module, name: str, size: tuple[int, int], places: Places) -> tuple[Tensor, Tensor]:
    """Numbers [row, in] and float32 scales [row, of columns] of the rows in ``places``, in theirs of scales; None: of
    all."""
    weight, scales = module.read("weight"), module.read(name).float()
    scales = scales.reshape(-1, 1) if scales.ndim < 2 else scales
    if places is None:
        return weight, scales.repeat_interleave(size[0], 0)[: len(weight)]
    return weight[places[0]], scales[places[1]]


def _own_rows(module: Module, name: str, size: tuple[int, int], places: Places = None) -> OwnRows | None:
    rows, columns = size
    _, inputs = module.matrix("weight")
    type_name = float8_type(rows, columns, inputs)
    if type_name is None or module.stored_type("weight") != "F8_E4M3":
        return None

    def make(_: int | None) -> NDArray[np.uint8]:
        numbers, scales = _rows(module, name, size, places)
        if bool(((numbers.view(torch.uint8) & 0x7F) == 0x7F).any()):
            raise module.fault("has weights that are no numbers")
        return float8_rows(numbers, scales)

    return OwnRows(type_name, make)
