"""DeepSeek-V4 as llama.cpp's converter writes it to GGUF files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedModel

_TABLES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_norm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_proj": "attn_kv",
    "self_attn.kv_norm": "attn_kv_a_norm",
    "self_attn.o_a_proj": "attn_output_a",
    "self_attn.o_b_proj": "attn_output_b",
    "self_attn.compressor.indexer.q_b_proj": "indexer.attn_q_b",
    "self_attn.compressor.indexer.scorer.weights_proj": "indexer.proj",
    "mlp.gate": "ffn_gate_inp",
    **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
_COMPRESSORS = {"self_attn.compressor": "attn_compressor", "self_attn.compressor.indexer": "indexer_compressor"}
for before, after in _COMPRESSORS.items():
    _NAMES |= {f"{before}.{part}_proj": f"{after}_{part}" for part in ("kv", "gate")}
    _NAMES |= {f"{before}.kv_norm": f"{after}_norm"}
_WHOLE = {
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    **{f"{before}.position_bias": f"{after}_ape.weight" for before, after in _COMPRESSORS.items()},
    **{f"{of}_hc.{part}": f"hc_{of}_{part}.weight" for of in ("attn", "ffn") for part in ("fn", "base", "scale")},
}


def write_deepseek_v4(model: PreTrainedModel, path: Path, modules: Sequence[Mapping[str, Tensor]] = ()) -> Path:
    """Of a model whose keys are compressed by 4 or 128, and whose first layers choose experts by token. ``modules``:
    what stands around the last layers, which are multi-token modules then."""
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "deepseek4")
    _metadata(writer, config)
    # The converter says so of files without modules, too.
    writer.add_nextn_predict_layers(len(modules) or config.num_nextn_predict_layers)
    for number, parts in enumerate(modules, config.num_hidden_layers - len(modules)):
        for name, tensor in parts.items():
            writer.add_tensor(f"blk.{number}.nextn.{name}.weight", tensor.numpy())
    tensors = dict(model.state_dict()) | {name: each for name, each in model.named_buffers() if "correction" in name}
    for name, tensor in tensors.items():
        stem, _, ending = name.rpartition(".")
        found = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        if found is None:
            end = f"output_{ending}.weight" if stem == "model.hc_head" else f"{_TABLES[stem]}.{ending}"
            writer.add_tensor(end, tensor.numpy())
            continue
        block, rest = f"blk.{found[1]}", found[2]
        if rest == "mlp.experts.gate_up_proj":
            parts = dict(zip(("ffn_gate_exps.weight", "ffn_up_exps.weight"), tensor.chunk(2, dim=1), strict=True))
        else:
            parts = {_WHOLE.get(rest) or f"{_NAMES[rest.rpartition('.')[0]]}.{ending}": tensor}
        for target, part in parts.items():
            values = part.to(torch.int32) if "tid2eid" in target else part
            writer.add_tensor(f"{block}.{target}", values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_sliding_window(config.sliding_window)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    main, scaled = config.rope_parameters["main"], config.rope_parameters["compress"]
    writer.add_rope_freq_base(main["rope_theta"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(scaled["factor"])
    writer.add_rope_scaling_orig_ctx_len(scaled["original_max_position_embeddings"])
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_weights_norm(True)
    writer.add_indexer_head_count(config.index_n_heads)
    writer.add_indexer_key_length(config.index_head_dim)
    writer.add_indexer_top_k(config.index_topk)
    ratios = [config.compress_rates.get(kind, 0) for kind in config.layer_types]
    writer.add_array("deepseek4.attention.compress_ratios", [*ratios, 0])
    writer.add_array("deepseek4.swiglu_clamp_exp", [config.swiglu_limit] * config.num_hidden_layers)
    for key, value in (
        ("expert_gating_func", 4),
        ("attention.output_lora_rank", config.o_lora_rank),
        ("attention.output_group_count", config.o_groups),
        ("hyper_connection.count", config.hc_mult),
        ("hyper_connection.sinkhorn_iterations", config.hc_sinkhorn_iters),
        ("hash_layer_count", config.mlp_layer_types.count("hash_moe")),
    ):
        writer.add_uint32(f"deepseek4.{key}", value)
    writer.add_float32("deepseek4.hyper_connection.epsilon", config.hc_eps)
    writer.add_float32("deepseek4.attention.compress_rope_freq_base", scaled["rope_theta"])
