"""GGUF files of a model's shape with random blocks, in llama.cpp's mixes: their values do not matter to their cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": dict(hidden=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, layers=16, vocab=128256, tied=1),
    "llama-3.1-8b": dict(hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336, layers=32, vocab=128256, tied=0),
}
HYBRIDS: dict[str, dict[str, Any]] = {
    "lfm2-1.2b": dict(
        architecture="lfm2", hidden=2048, heads=32, kv_heads=8, head_dim=64, mlp=8192, layers=16, vocab=65536, tied=1
    )
    | {"attends": [2, 5, 8, 10, 12, 14]},
    "qwen3.5-0.8b": dict(
        architecture="qwen35", hidden=1024, heads=8, kv_heads=2, head_dim=256, mlp=3584, layers=24, vocab=248320, tied=1
    )
    | {"attends": range(3, 24, 4), "mlp_norm": "post_attention_norm", "keys": 16, "values": 16, "size": 128},
    "qwen3.5-2b": dict(
        architecture="qwen35", hidden=2048, heads=8, kv_heads=2, head_dim=256, mlp=6144, layers=24, vocab=248320, tied=1
    )
    | {"attends": range(3, 24, 4), "mlp_norm": "post_attention_norm", "keys": 16, "values": 16, "size": 128},
    "qwen3.5-4b": dict(
        architecture="qwen35",
        hidden=2560,
        heads=16,
        kv_heads=4,
        head_dim=256,
        mlp=9216,
        layers=32,
        vocab=248320,
        tied=1,
    )
    | {"attends": range(3, 32, 4), "mlp_norm": "post_attention_norm", "keys": 16, "values": 32, "size": 128},
    "granite-4-h-1b": dict(
        architecture="granitehybrid",
        hidden=1536,
        heads=12,
        kv_heads=4,
        head_dim=128,
        mlp=4096,
        layers=40,
        vocab=100352,
        tied=1,
    )
    | {"attends": [5, 15, 25, 35], "states": 48, "head": 64, "size": 128},
}
"""Shapes of released models with states; ``attends``: the layers that do."""
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
    "Q2_K": ("Q2_K", "Q3_K"),
    "Q1_0": ("Q1_0", "Q1_0"),
    "IQ4_XS": ("IQ4_XS", "IQ4_XS"),
    "IQ4_NL": ("IQ4_NL", "IQ4_NL"),
    "MXFP4": ("MXFP4", "Q8_0"),
    "IQ2_XXS": ("IQ2_XXS", "Q4_K"),
    "IQ2_XS": ("IQ2_XS", "Q4_K"),
    "IQ2_S": ("IQ2_S", "Q4_K"),
    "IQ3_XXS": ("IQ3_XXS", "Q5_K"),
    "IQ3_S": ("IQ3_S", "Q5_K"),
}
"""Most of the matrices, and what the output head and half of the others' values and downs are in."""

_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q8_0": (0,),
    "Q3_K": (108,),
    "Q2_K": (80, 82),
    "Q1_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
}
"""Where units and offsets stand in a block, in half precision."""
_SPREADS = {
    "Q4_0": 4.6,
    "Q4_1": 4.6,
    "Q5_0": 9.2,
    "Q8_0": 74.0,
    "Q3_K": 43.0,
    "Q2_K": 12.0,
    "Q1_0": 1.0,
    "Q4_K": 170.0,
    "Q5_K": 340.0,
    "Q6_K": 1365.0,
    "IQ4_NL": 68.0,
    "IQ4_XS": 1250.0,
    "IQ2_XXS": 53.2,
    "IQ2_XS": 55.6,
    "IQ2_S": 56.2,
    "IQ3_XXS": 142.0,
    "IQ3_S": 140.0,
}
"""The root of the mean square of random weights, in units."""
_OFFSETS = {"Q2_K": 1.5, "Q4_1": -7.5, "Q4_K": 7.5, "Q5_K": 15.5}
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


def write(path: Path, shape: str, mix: str, modules: int = 0) -> Path:
    """The file; one that is there already is kept. ``modules``: multi-token modules behind a hybrid's layers."""
    if path.exists():
        return path
    of = SHAPES.get(shape) or HYBRIDS[shape]
    writer = gguf.GGUFWriter(path.with_suffix(".part"), str(of.get("architecture", "llama")))
    writer.add_context_length(8192)
    writer.add_embedding_length(of["hidden"])
    writer.add_block_count(of["layers"] + modules)
    if modules:
        writer.add_nextn_predict_layers(modules)
    writer.add_feed_forward_length(of["mlp"])
    writer.add_head_count(of["heads"])
    writer.add_key_length(of["head_dim"])
    writer.add_value_length(of["head_dim"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(of["vocab"])
    _add_vocabulary(writer, of["vocab"])
    tensors = RandomTensors(writer, mix)
    hidden, layers = of["hidden"], of["layers"]
    tensors.matrix("token_embd.weight", of["vocab"], hidden, more=bool(of["tied"]))
    if not of["tied"]:
        tensors.matrix("output.weight", of["vocab"], hidden, more=True)
    final = "token_embd_norm" if of.get("architecture") == "lfm2" else "output_norm"
    tensors.ones(f"{final}.weight", hidden)
    if shape in HYBRIDS:
        add_metadata(writer, of)
    else:
        writer.add_head_count_kv(of["kv_heads"])
        writer.add_rope_dimension_count(of["head_dim"])
    for layer in range(layers + modules):
        # llama.cpp's use_more_bits.
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
        stem = f"blk.{layer}."
        tensors.ones(f"{stem}attn_norm.weight", hidden)
        tensors.ones(f"{stem}{of.get('mlp_norm', 'ffn_norm')}.weight", hidden)
        if layer >= layers:
            tensors.matrix(f"{stem}nextn.eh_proj.weight", hidden, 2 * hidden)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                tensors.ones(f"{stem}nextn.{name}.weight", hidden)
        if shape in HYBRIDS:
            add_mixer(tensors, of, layer, more)
        else:
            add_attention(tensors, stem, hidden, of["heads"] * of["head_dim"], of["kv_heads"] * of["head_dim"], more)
        tensors.matrix(f"{stem}ffn_gate.weight", of["mlp"], hidden)
        tensors.matrix(f"{stem}ffn_up.weight", of["mlp"], hidden)
        tensors.matrix(f"{stem}ffn_down.weight", hidden, of["mlp"], more=more)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".part").rename(path)
    return path


class RandomTensors:
    """Adds tensors to a file; layers have the same weights, each its own copy there."""

    def __init__(self, writer: gguf.GGUFWriter, mix: str) -> None:
        self._writer = writer
        self._kinds = MIXES[mix]
        self._generator = np.random.default_rng(0)
        self._made: dict[tuple[str, int, int], NDArray[np.uint8]] = {}

    def matrix(self, name: str, rows: int, inputs: int, more: bool = False) -> None:
        """``more``: in the type that gets more bits."""
        kind = self._kinds[more]
        key = kind, rows, inputs
        if key not in self._made:
            self._made[key] = random_blocks(kind, rows, inputs, self._generator)
        self._writer.add_tensor(name, self._made[key], raw_dtype=GGMLQuantizationType[kind])

    def ones(self, name: str, *shape: int, factor: float = 1.0) -> None:
        """In float32."""
        self._writer.add_tensor(name, np.full(shape, factor, np.float32))


def add_attention(tensors: RandomTensors, stem: str, hidden: int, queries: int, keys: int, more: bool) -> None:
    tensors.matrix(f"{stem}attn_q.weight", queries, hidden)
    tensors.matrix(f"{stem}attn_k.weight", keys, hidden)
    tensors.matrix(f"{stem}attn_v.weight", keys, hidden, more=more)
    tensors.matrix(f"{stem}attn_output.weight", hidden, queries)


def add_metadata(writer: gguf.GGUFWriter, of: dict[str, Any]) -> None:
    """What the architecture of a model with states has beside the others'."""
    by_layer = [of["kv_heads"] if layer in of["attends"] else 0 for layer in range(of["layers"])]
    if of["architecture"] == "qwen35":
        writer.add_head_count_kv(of["kv_heads"])
        writer.add_rope_dimension_count(64)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_full_attention_interval(4)
        _add_state_sizes(writer, of["keys"], of["values"], of["size"], of["values"] * of["size"])
        return
    writer.add_head_count_kv(by_layer)
    if of["architecture"] == "lfm2":
        writer.add_shortconv_l_cache(3)
        return
    writer.add_rope_dimension_count(of["head_dim"])
    writer.add_rope_scaling_finetuned(False)
    writer.add_expert_shared_feed_forward_length(of["mlp"])
    for add in (
        writer.add_attention_scale,
        writer.add_embedding_scale,
        writer.add_residual_scale,
        writer.add_logit_scale,
    ):
        add(1.0)
    _add_state_sizes(writer, 1, of["states"], of["size"], of["states"] * of["head"])


def _add_state_sizes(writer: gguf.GGUFWriter, groups: int, heads: int, state: int, inner: int) -> None:
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_state_size(state)
    writer.add_ssm_inner_size(inner)


def add_mixer(tensors: RandomTensors, of: dict[str, Any], layer: int, more: bool) -> None:
    """Attention, or what stands in its place in a model with states."""
    stem, hidden, kind = f"blk.{layer}.", of["hidden"], of["architecture"]
    if layer in of["attends"] or layer >= of["layers"]:
        queries = of["heads"] * of["head_dim"]
        keys = of["kv_heads"] * of["head_dim"]
        if kind == "qwen35":  # with a gate for each query
            tensors.matrix(f"{stem}attn_q.weight", 2 * queries, hidden)
            tensors.matrix(f"{stem}attn_k.weight", keys, hidden)
            tensors.matrix(f"{stem}attn_v.weight", keys, hidden, more=more)
            tensors.matrix(f"{stem}attn_output.weight", hidden, queries)
        else:
            add_attention(tensors, stem, hidden, queries, keys, more)
        if kind != "granitehybrid":
            tensors.ones(f"{stem}attn_q_norm.weight", of["head_dim"])
            tensors.ones(f"{stem}attn_k_norm.weight", of["head_dim"])
        return
    if kind == "lfm2":
        tensors.matrix(f"{stem}shortconv.in_proj.weight", 3 * hidden, hidden)
        tensors.ones(f"{stem}shortconv.conv.weight", hidden, 3, factor=0.3)
        tensors.matrix(f"{stem}shortconv.out_proj.weight", hidden, hidden)
        return
    if kind == "qwen35":
        heads, inner = of["values"], of["values"] * of["size"]
        convolved = 2 * of["keys"] * of["size"] + inner
        tensors.matrix(f"{stem}attn_qkv.weight", convolved, hidden)
        tensors.matrix(f"{stem}attn_gate.weight", inner, hidden)
        tensors.matrix(f"{stem}ssm_alpha.weight", heads, hidden)
        tensors.matrix(f"{stem}ssm_beta.weight", heads, hidden)
        tensors.ones(f"{stem}ssm_a", heads, factor=-1.0)
        tensors.ones(f"{stem}ssm_norm.weight", of["size"])
    else:
        heads, inner = of["states"], of["states"] * of["head"]
        convolved = inner + 2 * of["size"]
        tensors.matrix(f"{stem}ssm_in.weight", inner + convolved + heads, hidden)
        tensors.ones(f"{stem}ssm_a", heads, 1, factor=-1.0)
        tensors.ones(f"{stem}ssm_d", heads, 1)
        tensors.ones(f"{stem}ssm_norm.weight", 1, inner)
        tensors.ones(f"{stem}ssm_conv1d.bias", convolved, factor=0.0)
    tensors.ones(f"{stem}ssm_conv1d.weight", convolved, 4, factor=0.3)
    tensors.ones(f"{stem}ssm_dt.bias", heads, factor=0.1)
    tensors.matrix(f"{stem}ssm_out.weight", hidden, inner)


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
