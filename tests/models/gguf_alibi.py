"""Tiny GGUF files of BLOOM, MPT and Falcon, by the rules of llama.cpp's converter (conversion/bloom.py, mpt.py and
falcon.py there), written here anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedModel

_NAMES = {
    r"transformer\.(word_embeddings|wte)": "token_embd",
    r"transformer\.word_embeddings_layernorm": "token_embd_norm",
    r"transformer\.(ln_f|norm_f)": "output_norm",
    r"lm_head": "output",
    r"transformer\.(?:h|blocks)\.(\d+)\.(input_layernorm|ln_mlp|norm_1)": r"blk.\1.attn_norm",
    r"transformer\.h\.(\d+)\.ln_attn": r"blk.\1.attn_norm_2",
    r"transformer\.(?:h|blocks)\.(\d+)\.(self_attention\.query_key_value|attn\.Wqkv)": r"blk.\1.attn_qkv",
    r"transformer\.(?:h|blocks)\.(\d+)\.(self_attention\.dense|attn\.out_proj)": r"blk.\1.attn_output",
    r"transformer\.(?:h|blocks)\.(\d+)\.(post_attention_layernorm|norm_2)": r"blk.\1.ffn_norm",
    r"transformer\.(?:h|blocks)\.(\d+)\.(mlp\.dense_h_to_4h|ffn\.up_proj)": r"blk.\1.ffn_up",
    r"transformer\.(?:h|blocks)\.(\d+)\.(mlp\.dense_4h_to_h|ffn\.down_proj)": r"blk.\1.ffn_down",
}


def write_alibi(model: PreTrainedModel, path: Path) -> Path:
    config: Any = model.config
    kind, heads = config.model_type, config.num_attention_heads
    kv_heads = {"bloom": heads, "mpt": heads}.get(kind) or (
        config.num_kv_heads if config.new_decoder_architecture else 1
    )
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(256)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    if kind != "mpt":
        writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    if kind == "mpt":
        writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)
        if config.attn_config.clip_qkv is not None:
            writer.add_clamp_kqv(config.attn_config.clip_qkv)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stem, _, ending = name.rpartition(".")
        target = next(found.expand(to) for each, to in _NAMES.items() if (found := re.fullmatch(each, stem)))
        if "query_key_value" in name:
            tensor = _parts_apart(tensor, heads, kv_heads)
        writer.add_tensor(f"{target}.{ending}", tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _parts_apart(tensor: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Rows by head of keys (its queries, its key, its value) -> all queries, all keys, all values."""
    groups = tensor.reshape(kv_heads, heads // kv_heads + 2, -1, *tensor.shape[1:])
    parts = (groups[:, :-2], groups[:, -2], groups[:, -1])
    return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
