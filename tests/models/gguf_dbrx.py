"""Tiny GGUF files of DBRX, by the rules of llama.cpp's converter (conversion/dbrx.py there), written here anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
from transformers import PreTrainedModel

_NAMES = {
    "transformer.wte.weight": "token_embd.weight",
    "transformer.norm_f.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "norm_attn_norm.norm_1.weight": "attn_norm.weight",
    "norm_attn_norm.norm_2.weight": "attn_output_norm.weight",
    "norm_attn_norm.attn.Wqkv.weight": "attn_qkv.weight",
    "norm_attn_norm.attn.out_proj.weight": "attn_output.weight",
    "ffn.router.layer.weight": "ffn_gate_inp.weight",
    "ffn.experts.mlp.w1": "ffn_gate_exps.weight",
    "ffn.experts.mlp.v1": "ffn_up_exps.weight",
    "ffn.experts.mlp.w2": "ffn_down_exps.weight",
}


def write_dbrx(model: PreTrainedModel, path: Path) -> Path:
    config: Any = model.config
    attention, inner = config.attn_config, config.ffn_config
    writer = gguf.GGUFWriter(path, "dbrx")
    writer.add_block_count(config.n_layers)
    writer.add_context_length(config.max_seq_len)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(inner.ffn_hidden_size)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(attention.kv_n_heads)
    writer.add_rope_freq_base(attention.rope_theta)
    writer.add_clamp_kqv(attention.clip_qkv)
    writer.add_expert_count(inner.moe_num_experts)
    writer.add_expert_used_count(inner.moe_top_k)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    for name, tensor in model.state_dict().items():
        layer = re.fullmatch(r"transformer\.blocks\.(\d+)\.(.*)", name)
        target = _NAMES[name] if layer is None else f"blk.{layer[1]}.{_NAMES[layer[2]]}"
        if ".experts." in name:
            tensor = tensor.view(inner.moe_num_experts, inner.ffn_hidden_size, config.d_model)
        if name.endswith("w2"):
            tensor = tensor.transpose(1, 2)
        writer.add_tensor(target, tensor.contiguous().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
