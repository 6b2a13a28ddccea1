"""Random blocks of every type that GGUF has for weights, and tiny models of them."""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import cast

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from headstart.models.gguf_types import YOUNGER, GgufType, dequantised

HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "Q1_0": (0,),
    "Q2_0": (0,),
    "Q2_0/128": (0,),
    "IQ1_M": (),
    "MXFP4": (),
    "NVFP4": (),
}
"""Where units and offsets stand in a block, in half precision; the last three have other ones."""

BLOCK_TYPES = tuple(HALVES)
_YOUNGER = {kind.name: (number, kind) for number, kinds in YOUNGER.items() for kind in kinds}


class _Number(enum.IntEnum):
    """Types that the ``gguf`` package has no name for."""

    Q2_0 = 42


def type_of(kind: str) -> GgufType:
    if kind in _YOUNGER:
        return _YOUNGER[kind][1]
    return GgufType(kind, *GGML_QUANT_SIZES[GGMLQuantizationType[kind]])


def add_blocks(writer: gguf.GGUFWriter, name: str, data: NDArray[np.uint8], kind: str) -> None:
    """A tensor [row, byte] of a file."""
    if not kind.startswith("Q2_0"):
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])
        return
    sizes = cast(dict[int, tuple[int, int]], GGML_QUANT_SIZES)
    sizes[_Number.Q2_0] = type_of(kind).block, type_of(kind).nbytes
    try:
        writer.add_tensor(name, data, raw_dtype=_Number.Q2_0)
    finally:
        del sizes[_Number.Q2_0]


LAYERS, HIDDEN, MLP, HEAD_DIM, VOCAB = 2, 256, 512, 64, 96


def random_blocks(kind: str, rows: int, inputs: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """uint8 [rows, bytes] that stand for weights of order inputs^-0.5, units of either sign."""
    size, nbytes = type_of(kind).block, type_of(kind).nbytes
    blocks = generator.integers(0, 256, (rows * inputs // size, nbytes), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = generator.integers(118, 122, len(blocks))
    elif kind == "NVFP4":
        blocks[:, :4] = generator.integers(8, 64, (len(blocks), 4))
    elif kind == "IQ1_M":  # the unit's four parts are in the upper four bits of the scales
        halves = _halves(len(blocks), generator)
        scales = blocks[:, 48:].view(np.uint16)
        for part in range(4):
            scales[:, part] = (scales[:, part] & 0x0FFF) | (((halves >> (4 * part)) & 15) << 12)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = _halves(len(blocks), generator)[:, None].view(np.uint8)
    if kind in ("Q4_1", "Q5_1"):  # weights on both sides of zero, as there are
        unit = blocks[:, 0:2].copy().view(np.float16).astype(np.float32)
        levels = 7.5 if kind == "Q4_1" else 15.5
        offset = -unit * levels * generator.uniform(0.8, 1.2, unit.shape)
        blocks[:, 2:4] = offset.astype(np.float16).view(np.uint8)
    if kind in ("Q2_K", "Q4_K", "Q5_K"):
        first, second = HALVES[kind]
        unit = blocks[:, first : first + 2].copy().view(np.float16).astype(np.float32)
        levels = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}[kind]
        blocks[:, second : second + 2] = (unit * levels).astype(np.float16).view(np.uint8)
    values = dequantised(blocks, kind)
    spread = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) * math.sqrt(inputs)
    step = 2.0 ** round(math.log2(1 / spread))
    _rescale(kind, blocks, step)
    return blocks.reshape(rows, -1)


def _halves(count: int, generator: np.random.Generator) -> NDArray[np.uint16]:
    values = generator.uniform(0.5, 2.0, count) * generator.choice([-1.0, 1.0], count)
    return values.astype(np.float16).view(np.uint16)


def _rescale(kind: str, blocks: NDArray[np.uint8], step: float) -> None:
    """Multiplies all units by a power of two."""
    for at in HALVES[kind]:
        unit = blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)
        blocks[:, at : at + 2] = (unit * step).astype(np.float16).view(np.uint8)
    if kind == "IQ1_M":
        scales = blocks[:, 48:].view(np.uint16)
        halves = sum((scales[:, part] >> 12).astype(np.uint16) << np.uint16(4 * part) for part in range(4))
        unit = np.asarray(halves, np.uint16).view(np.float16).astype(np.float32) * step
        halves = unit.astype(np.float16).view(np.uint16)
        for part in range(4):
            scales[:, part] = (scales[:, part] & 0x0FFF) | (((halves >> (4 * part)) & 15) << 12)
    if kind == "MXFP4":
        blocks[:, 0] += np.uint8(round(math.log2(step)) % 256)


def write_llama(path: Path, types: dict[str, str], seed: int = 0, tied: bool = False) -> Path:
    """A tiny llama; ``types``: of matrices, by the last two parts of their names, "" of all others."""
    generator = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HIDDEN // HEAD_DIM)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1000.0)
    writer.add_vocab_size(VOCAB)
    writer.add_token_list([f"<{i}>" for i in range(VOCAB)])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def matrix(name: str, rows: int, inputs: int) -> None:
        ending = next((each for each in types if each == name or (each and name.endswith(f".{each}"))), "")
        kind = types[ending]
        if kind in ("F32", "F16", "BF16"):
            values = generator.standard_normal((rows, inputs), np.float32) * inputs**-0.5
            data = gguf.quants.quantize(values, GGMLQuantizationType[kind])
            raw = GGMLQuantizationType[kind] if kind == "BF16" else None
            writer.add_tensor(name, data, raw_dtype=raw)
        else:
            add_blocks(writer, name, random_blocks(kind, rows, inputs, generator), kind)

    matrix("token_embd.weight", VOCAB, HIDDEN)
    if not tied:
        matrix("output.weight", VOCAB, HIDDEN)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        stem = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{stem}{name}.weight", np.ones(HIDDEN, np.float32))
        for name, rows, inputs in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", 2 * HEAD_DIM, HIDDEN),
            ("attn_v", 2 * HEAD_DIM, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", MLP, HIDDEN),
            ("ffn_up", MLP, HIDDEN),
            ("ffn_down", HIDDEN, MLP),
        ):
            matrix(f"{stem}{name}.weight", rows, inputs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
