"""Tiny GGUF files of models with latent attention, by the rules of llama.cpp's converter (conversion/deepseek.py,
mistral3.py, minicpm.py there), written here anew."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from torch import Tensor
from transformers import PreTrainedModel

_KDA = {
    r"self_attn\.([qkv])_proj": r"attn_\1",
    r"self_attn\.o_norm": "ssm_norm",
    r"self_attn\.b_proj": "ssm_beta",
    r"self_attn\.(?:forget_gate\.)?([fg])_([ab])_proj": r"ssm_\1_\2",
    r"self_attn\.(?:forget_gate\.)?([fg])_proj": r"ssm_\1_a",
}
_NAMES = {
    r"input_layernorm": "attn_norm",
    r"post_attention_layernorm": "ffn_norm",
    r"self_attn\.q_proj": "attn_q",
    r"self_attn\.q_a_proj": "attn_q_a",
    r"self_attn\.q_a_layernorm": "attn_q_a_norm",
    r"self_attn\.q_b_proj": "attn_q_b",
    r"self_attn\.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    r"self_attn\.kv_a_layernorm": "attn_kv_a_norm",
    r"self_attn\.o_proj": "attn_output",
    r"mlp\.(gate|up|down)_proj": r"ffn_\1",
    r"mlp\.gate": "ffn_gate_inp",
    r"mlp\.experts\.(gate|up|down)": r"ffn_\1_exps",
    r"mlp\.shared_experts\.(gate|up|down)_proj": r"ffn_\1_shexp",
}
_INDEXER = {"wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj"}
_KDA_DECAYS = {"kimi_linear": lambda a: -a.exp().view(1, 1, -1, 1), "bailing_hybrid": lambda a: a.exp().view(-1, 1)}
_KDA_DECAYS["glm5_next_text"] = lambda a: -a.exp()
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_latent(
    model: PreTrainedModel,
    path: Path,
    joint: bool = False,
    quantised: str | None = None,
    modules: Sequence[Mapping[str, Tensor]] = (),
) -> Path:
    """``joint``: as before April 2025, when keys' and values' matrix was one. ``quantised``: the type of matrices whose
    rows can be. ``modules``: what stands around the last layers, which are multi-token modules then."""
    config: Any = model.config.get_text_config()
    kind = config.model_type
    joint = joint or kind == "minicpm3"
    named = {"deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa", "mistral4": "mistral4", "minicpm3": "minicpm3"}
    named |= {"kimi_linear": "kimi-linear", "bailing_hybrid": "bailingmoe3", "glm5_next_text": "glm5-next"}
    named["hy_v4"] = "hyv4"
    writer = gguf.GGUFWriter(path, named.get(kind, "deepseek2"))
    _metadata(writer, config, joint)
    if modules:
        writer.add_nextn_predict_layers(len(modules))
    for number, parts in enumerate(modules, config.num_hidden_layers - len(modules)):
        for name, tensor in parts.items():
            moved = kind == "bailing_hybrid" and name == "shared_head_norm"
            writer.add_tensor(
                f"blk.{number}.{'layer_output_norm' if moved else f'nextn.{name}'}.weight", tensor.numpy()
            )
    tensors = dict(model.state_dict()) | {name: each for name, each in model.named_buffers() if "correction" in name}
    heads, plain = config.num_attention_heads, config.qk_nope_head_dim
    for name, tensor in tensors.items():
        if "visual." in name:
            continue
        name = name.replace("language_model.", "")
        stem, _, ending = name.rpartition(".")
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem)
        if stem == "lm_head" and config.tie_word_embeddings:
            continue
        if layer is None:
            end = f"output_{ending}.weight" if stem == "model.hc_head" else f"{_WHOLE[stem]}.{ending}"
            writer.add_tensor(end, tensor.numpy())
            continue
        block, rest = f"blk.{layer[1]}", layer[2]
        if ending == "e_score_correction_bias":
            parts = {"exp_probs_b.bias": tensor}
        elif rest.endswith("kv_b_proj"):
            both = tensor.view(heads, plain + config.v_head_dim, -1)
            parts = {"attn_k_b.weight": both[:, :plain].transpose(1, 2), "attn_v_b.weight": both[:, plain:]}
            parts = {"attn_kv_b.weight": tensor} if joint else parts
        elif rest.endswith("conv1d"):
            thirds = tensor.chunk(3)
            named = zip("qkv", thirds, strict=True)
            parts = {f"ssm_conv1d_{part}.weight": each[None] for part, each in named}
        elif ending == "A_log":
            parts = {"ssm_a": _KDA_DECAYS[config.model_type](tensor)}
        elif ending == "sinks":
            parts = {"attn_sinks.weight": tensor}
        elif ending == "dt_bias":
            parts = {"ssm_dt.bias": tensor}
        elif rest.endswith("_hc"):
            if int(layer[1]) >= config.num_hidden_layers - len(modules):
                continue
            parts = {f"hc_{rest.removesuffix('_hc')}_{ending}.weight": tensor}
        elif ending.startswith("index_kpool"):
            parts = {f"indexer_compressor_{ending.rpartition('_')[2]}.weight": tensor}
        elif rest.startswith("self_attn.indexer"):
            parts = {f"indexer.{_INDEXER[rest.rpartition('.')[2]]}.{ending}": tensor}
        elif ending == "gate_up_proj":
            gate, up = tensor.chunk(2, dim=1)
            parts = {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
        elif ending == "down_proj":
            parts = {"ffn_down_exps.weight": tensor}
        else:
            linear = (
                getattr(config, "linear_head_dim", None) and config.layer_types[int(layer[1])] == "linear_attention"
            )
            names = (_KDA | _NAMES if linear else _NAMES | {r"self_attn\.g(ate)?_proj": "attn_gate"}).items()
            target = next(found.expand(to) for each, to in names if (found := re.fullmatch(each, rest)))
            parts = {f"{target}.{ending}": tensor}
        for target, part in parts.items():
            values = part.contiguous().float().numpy()
            kind = None if quantised is None else gguf.GGMLQuantizationType[quantised]
            small = values.ndim == 1 or "inp" in target or "conv1d" in target
            if kind is None or small or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
                writer.add_tensor(f"{block}.{target}", values)
            else:
                writer.add_tensor(f"{block}.{target}", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(writer: gguf.GGUFWriter, config: Any, joint: bool) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    linear = [kind == "linear_attention" for kind in getattr(config, "layer_types", None) or []]
    if hasattr(config, "linear_head_dim"):
        writer.add_head_count_kv([0 if each else 1 for each in linear])
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_uint32(f"{writer.arch}.kda.head_dim", config.linear_head_dim)
    else:
        writer.add_head_count_kv(config.num_attention_heads if joint else 1)
    if hasattr(config, "hc_mult"):
        writer.add_uint32(f"{writer.arch}.hyper_connection.count", config.hc_mult)
        writer.add_float32(f"{writer.arch}.hyper_connection.epsilon", config.hc_eps)
        writer.add_array(f"{writer.arch}.swiglu_clamp_exp", [config.swiglu_limit] * config.num_hidden_layers)
    if config.model_type == "hy_v4":
        writer.add_float32(f"{writer.arch}.hyper_connection.magnitude", config.hc_magnitude)
    if config.model_type == "glm5_next_text":
        writer.add_float32(f"{writer.arch}.kda.gate_lower_bound", config.linear_lower_bound)
        writer.add_uint32(f"{writer.arch}.hyper_connection.sinkhorn_iterations", config.hc_sinkhorn_iters)
        writer.add_bool(f"{writer.arch}.attention.indexer.kpool_select_tail", True)
        writer.add_uint32(f"{writer.arch}.attention.indexer.kpool", config.index_kpool)
    if config.model_type == "bailing_hybrid":
        writer.add_bool(f"{writer.arch}.kda.safe_gate", config.kda_safe_gate)
        writer.add_float32(f"{writer.arch}.kda.gate_lower_bound", config.kda_lower_bound)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    if getattr(config, "q_lora_rank", None) is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    rope, mixed = getattr(config, "rope_parameters", None), hasattr(config, "moe_intermediate_size")
    if config.model_type == "minicpm3":
        writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
        return
    if rope is not None:
        writer.add_rope_freq_base(rope["rope_theta"])
    dense = [i for i, kind in enumerate(getattr(config, "mlp_layer_types", None) or []) if kind == "dense"]
    first = config.first_k_dense_replace if mixed and not dense else len(dense)
    writer.add_leading_dense_block_count(first if mixed else config.num_hidden_layers)
    if joint:
        writer.add_key_length(config.qk_nope_head_dim + config.qk_rope_head_dim)
        writer.add_value_length(config.v_head_dim)
    else:
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
        writer.add_value_length_mla(config.v_head_dim)
    if rope is not None and rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
        if "llama_4_scaling_beta" in rope:
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    writer.add_expert_shared_count(getattr(config, "n_shared_experts", 0))
    if not mixed:
        return
    sigmoid = config.model_type in (
        "deepseek_v3",
        "deepseek_v32",
        "glm_moe_dsa",
        "glm4_moe_lite",
        "hy_v4",
        *_KDA_DECAYS,
    )
    if hasattr(config, "index_topk"):
        writer.add_indexer_head_count(config.index_n_heads)
        writer.add_indexer_key_length(config.index_head_dim)
        writer.add_indexer_top_k(config.index_topk)
        if config.model_type in ("glm_moe_dsa", "hy_v4", "glm5_next_text"):
            writer.add_array(
                f"{writer.arch}.attention.indexer.types", [each == "full" for each in config.indexer_types]
            )
    writer.add_expert_count(getattr(config, "n_routed_experts", None) or config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if (sigmoid and config.model_type != "kimi_linear") or config.model_type == "mistral4":
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if sigmoid:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if sigmoid or getattr(config, "topk_method", "") == "group_limited_greedy":
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
