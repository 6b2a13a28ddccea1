"""GGUF files of a model's shape with random blocks, in llama.cpp's mixes: their values do not matter to their cost."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

SHAPES = {
    "llama-3.2-1b": dict(hidden=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, layers=16, vocab=128256, tied=1),
    "llama-3.1-8b": dict(hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, layers=32, vocab=128256, tied=0),
}
MIXES = {
    "Q4_K_M": ("Q4_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K"),
    "Q4_K": ("Q4_K", "Q4_K"),
    "Q6_K": ("Q6_K", "Q6_K"),
    "Q8_0": ("Q8_0", "Q8_0"),
    "Q4_0": ("Q4_0", "Q4_0"),
    "Q4_1": ("Q4_1", "Q4_1"),
    "Q5_0": ("Q5_0", "Q5_0"),
    "Q3_K": ("Q3_K", "Q3_K"),
    "IQ4_XS": ("IQ4_XS", "IQ4_XS"),
    "IQ4_NL": ("IQ4_NL", "IQ4_NL"),
    "MXFP4": ("MXFP4", "Q8_0"),
}
"""Most of the matrices, and what the output head and half of the others' values and downs are in."""

_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q8_0": (0,),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
"""Where units and offsets stand in a block, in half precision."""
_SPREADS = {
    "Q4_0": 4.6,
    "Q4_1": 4.6,
    "Q5_0": 9.2,
    "Q8_0": 74.0,
    "Q3_K": 43.0,
    "Q4_K": 170.0,
    "Q5_K": 340.0,
    "Q6_K": 1365.0,
    "IQ4_NL": 68.0,
    "IQ4_XS": 1250.0,
}
"""The root of the mean square of random weights, in units."""
_OFFSETS = {"Q4_1": -7.5, "Q4_K": 7.5, "Q5_K": 15.5}
"""What centres them, in units."""


def random_blocks(kind: str, rows: int, inputs: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """uint8 [rows, bytes] that stand for weights of order inputs^-0.5."""
    size, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = np.frombuffer(generator.bytes(rows * inputs // size * nbytes), np.uint8).reshape(-1, nbytes).copy()
    if kind == "MXFP4":
        blocks[:, 0] = 125 - round(math.log2(inputs) / 2)
        return blocks.reshape(rows, -1)
    unit = inputs**-0.5 / _SPREADS[kind]
    for at, value in zip(_HALVES[kind], (unit, unit * _OFFSETS.get(kind, 0.0)), strict=False):
        blocks[:, at : at + 2] = np.array([value], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path, shape: str, mix: str) -> Path:
    """The file; one that is there already is kept."""
    if path.exists():
        return path
    of = SHAPES[shape]
    most, more = MIXES[mix]
    generator = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path.with_suffix(".part"), "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(of["hidden"])
    writer.add_block_count(of["layers"])
    writer.add_feed_forward_length(of["mlp"])
    writer.add_head_count(of["heads"])
    writer.add_head_count_kv(of["kv_heads"])
    writer.add_key_length(of["head_dim"])
    writer.add_value_length(of["head_dim"])
    writer.add_rope_dimension_count(of["head_dim"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(of["vocab"])
    _add_vocabulary(writer, of["vocab"])
    kept: dict[tuple[str, int, int], NDArray[np.uint8]] = {}

    def matrix(name: str, rows: int, inputs: int, kind: str) -> None:
        # Layers have the same weights, each its own copy in the file.
        data = kept.get((kind, rows, inputs))
        if data is None:
            data = kept[kind, rows, inputs] = random_blocks(kind, rows, inputs, generator)
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[kind])

    hidden, layers = of["hidden"], of["layers"]
    matrix("token_embd.weight", of["vocab"], hidden, more if of["tied"] else most)
    if not of["tied"]:
        matrix("output.weight", of["vocab"], hidden, more)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    keys, queries = of["kv_heads"] * of["head_dim"], of["heads"] * of["head_dim"]
    for layer in range(layers):
        # llama.cpp's use_more_bits.
        gets_more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        stem, some = f"blk.{layer}.", more if gets_more else most
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{stem}{name}.weight", np.ones(hidden, np.float32))
        matrix(f"{stem}attn_q.weight", queries, hidden, most)
        matrix(f"{stem}attn_k.weight", keys, hidden, most)
        matrix(f"{stem}attn_v.weight", keys, hidden, some)
        matrix(f"{stem}attn_output.weight", hidden, queries, most)
        matrix(f"{stem}ffn_gate.weight", of["mlp"], hidden, most)
        matrix(f"{stem}ffn_up.weight", of["mlp"], hidden, most)
        matrix(f"{stem}ffn_down.weight", hidden, of["mlp"], some)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".part").rename(path)
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, vocab: int) -> None:
    """Of sentencepiece's kind: control tokens, bytes, and made-up pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"\N{LOWER ONE EIGHTH BLOCK}t{i}" for i in range(len(tokens), vocab)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (vocab - 259)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
