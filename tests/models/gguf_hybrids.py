"""Tiny GGUF files of models with states, by the rules of llama.cpp's converter (conversion/lfm2.py, granite.py,
nemotron.py, qwen.py there), written here anew."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedModel

ARCHITECTURES = {
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "nemotron_h": "nemotron_h",
    "falcon_h1": "falcon-h1",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
_NAMES = {
    r"model\.embed_tokens|model\.embeddings": "token_embd",
    r"model\.embedding_norm": "token_embd_norm",
    r"model\.norm|model\.norm_f|model\.final_layernorm": "output_norm",
    r"lm_head": "output",
    r"(operator_norm|input_layernorm|norm)": "attn_norm",
    r"ffn_norm|pre_ff_layernorm": "ffn_norm",
    r"feed_forward\.(gate|up|down)_proj": r"ffn_\1",
    r"(?:self_attn|mixer)\.([qkv])_proj": r"attn_\1",
    r"(?:self_attn|mixer)\.o(?:ut)?_proj(?=@attention)": "attn_output",
    r"self_attn\.([qk])_(?:layer)?norm": r"attn_\1_norm",
    r"conv\.conv": "shortconv.conv",
    r"conv\.(in|out)_proj": r"shortconv.\1_proj",
    r"feed_forward\.w1|shared_mlp\.gate|mlp\.gate_proj": "ffn_gate",
    r"feed_forward\.w3|shared_mlp\.up|mlp\.up_proj|mixer\.up_proj": "ffn_up",
    r"feed_forward\.w2|shared_mlp\.down|mlp\.down_proj|mixer\.down_proj": "ffn_down",
    r"(?:feed_forward|mlp|mixer)\.gate|block_sparse_moe\.router(?:\.layer)?": "ffn_gate_inp",
    r"(?:feed_forward|mlp|mixer|block_sparse_moe)\.experts\.(gate|up|down)": r"ffn_\1_exps",
    r"(?:mlp|mixer)\.shared_experts?\.(gate|up|down)_proj|shared_expert\.(gate|up|down)": r"ffn_\1\2_shexp",
    r"mlp\.shared_expert_gate": "ffn_gate_inp_shexp",
    r"(?:mamba|mixer)\.in_proj": "ssm_in",
    r"(?:mamba|linear_attn|mixer)\.conv1d": "ssm_conv1d",
    r"(?:mamba|linear_attn|mixer)\.norm": "ssm_norm",
    r"(?:mamba|linear_attn|mixer)\.out_proj": "ssm_out",
    r"linear_attn\.in_proj_ba": "ssm_ba",
    r"linear_attn\.in_proj_b": "ssm_beta",
    r"linear_attn\.in_proj_a": "ssm_alpha",
    r"linear_attn\.in_proj_qkv": "attn_qkv",
    r"linear_attn\.in_proj_z": "attn_gate",
}


def write_hybrid(
    model: PreTrainedModel,
    path: Path,
    quantised: str | None = None,
    of_part: Mapping[str, str] | None = None,
    modules: Sequence[Mapping[str, Tensor]] = (),
) -> Path:
    """``quantised``: the type of matrices whose rows can be; ``of_part``: that of those with such a part in their
    names; ``modules``: what stands around the last layers, which are multi-token modules then (of Nemotron-H two layers
    are one)."""
    config = model.config
    folded = bool(modules) and config.model_type == "nemotron_h"
    arch = ARCHITECTURES[config.model_type]
    if arch == "nemotron_h" and "moe" in config.layers_block_type:
        arch = "nemotron_h_moe"
    writer = gguf.GGUFWriter(path, arch)
    _metadata(writer, config, folded)
    if modules:
        writer.add_nextn_predict_layers(len(modules))
    first = len(_kinds(config)) - len(modules) - folded
    for number, parts in enumerate(modules, first):
        for name, tensor in parts.items():
            moved = tensor.ndim == 1 and config.model_type.startswith("qwen")
            values, type_ = (tensor + 1 if moved else tensor).numpy(), None
            if quantised is not None and values.ndim == 2:
                type_ = gguf.GGMLQuantizationType[quantised]
                values = gguf.quants.quantize(values, type_)
            writer.add_tensor(f"blk.{number}.nextn.{name}.weight", values, raw_dtype=type_)
    tensors = dict(model.state_dict()) | dict(model.named_buffers())
    for name, tensor in tensors.items():
        if "inv_freq" in name or "mup_vector" in name or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        for target, converted in _converted(name, tensor, config):
            if folded:
                target = target.replace(f"blk.{first + 1}.attn_norm", f"blk.{first + 1}.post_attention_norm")
                target = target.replace(f"blk.{first + 1}.", f"blk.{first}.")
            values = converted.contiguous().float().numpy()
            other = next((kind for part, kind in (of_part or {}).items() if part in target), quantised)
            kind = None if other is None else gguf.GGMLQuantizationType[other]
            if kind is None or values.ndim == 1 or "inp" in target or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
                writer.add_tensor(target, values)
            else:
                writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _kinds(config: Any) -> list[str]:
    if config.model_type == "falcon_h1":
        return ["full_attention"] * config.num_hidden_layers
    return list(config.layers_block_type if config.model_type == "nemotron_h" else config.layer_types)


def _metadata(writer: gguf.GGUFWriter, config: Any, folded: bool) -> None:
    kind, kinds = config.model_type, _kinds(config)
    kinds = kinds[:-1] if folded else kinds
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(len(kinds))
    writer.add_head_count(config.num_attention_heads)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    eps = next(
        getattr(config, name) for name in ("norm_eps", "layer_norm_epsilon", "rms_norm_eps") if hasattr(config, name)
    )
    writer.add_layer_norm_rms_eps(eps)
    head_dim = getattr(config, "head_dim", None)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if kind.startswith(("qwen", "falcon")):
        writer.add_head_count_kv(config.num_key_value_heads)
    else:
        attends = [each in ("attention", "full_attention") for each in kinds]
        writer.add_head_count_kv([config.num_key_value_heads if each else 0 for each in attends])
    rope = getattr(config, "rope_parameters", None)
    if rope is not None:
        writer.add_rope_freq_base(rope["rope_theta"])
    inner = getattr(config, "intermediate_size", None)
    if kind == "lfm2" and config.block_auto_adjust_ff_dim:
        inner = -(-int(2 * inner / 3) // config.block_multiple_of) * config.block_multiple_of
    if kind == "nemotron_h":
        size = config.moe_intermediate_size if "moe" in kinds else config.intermediate_size
        inner = [size if each in ("mlp", "moe") else 0 for each in kinds]
        inner[-1] = size if folded else inner[-1]
    if inner is not None:
        writer.add_feed_forward_length(inner)
    if kind.startswith("lfm2"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if kind == "granitemoehybrid":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
        _ssm(writer, config.mamba_d_conv, config.mamba_d_state, config.mamba_n_groups, config.mamba_n_heads)
        writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    if kind == "falcon_h1":
        _ssm(writer, config.mamba_d_conv, config.mamba_d_state, config.mamba_n_groups, config.mamba_n_heads)
        writer.add_ssm_inner_size(config.mamba_d_ssm)
    if kind == "nemotron_h":
        _ssm(writer, config.conv_kernel, config.ssm_state_size, config.n_groups, config.mamba_num_heads)
        writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    if kind.startswith("qwen"):
        heads, keys = config.linear_num_value_heads, config.linear_num_key_heads
        _ssm(writer, config.linear_conv_kernel_dim, config.linear_key_head_dim, keys, heads)
        writer.add_ssm_inner_size(heads * config.linear_value_head_dim)
        writer.add_full_attention_interval(2)
        writer.add_rope_dimension_count(int(0.25 * config.head_dim))
    _experts(writer, config, kinds)


def _ssm(writer: gguf.GGUFWriter, kernel: int, state: int, groups: int, heads: int) -> None:
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_time_step_rank(heads)


def _experts(writer: gguf.GGUFWriter, config: Any, kinds: list[str]) -> None:
    kind = config.model_type
    count = getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0)
    if not count or (kind == "nemotron_h" and "moe" not in kinds):
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size") and kind != "granitemoehybrid":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "lfm2_moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind == "nemotron_h":
        writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_group_count(config.n_group)
    if kind.startswith("qwen"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def _converted(name: str, tensor: Tensor, config: Any) -> list[tuple[str, Tensor]]:
    """What becomes of a tensor: names and values in the file."""
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    if config.model_type == "falcon_h1" and tensor.dim() == 2:
        tensor = _with_factors(name, tensor, config)
    if layer is None:
        stem = name.removesuffix(".weight")
        return [(f"{_target(stem)}.weight", _offset(name, tensor, config))]
    block, rest = f"blk.{layer[1]}", layer[2]
    kind = config.model_type
    attends = _kinds(config)[int(layer[1])] in ("attention", "full_attention")
    if kind.startswith("qwen"):
        tensor = _tiled(rest, tensor, config) if kind != "qwen3_next" else tensor
    if rest.endswith("A_log"):
        decay = -tensor.exp()
        return [(f"{block}.ssm_a", decay if kind.startswith("qwen") else decay[:, None])]
    if rest.endswith(".D"):
        return [(f"{block}.ssm_d", tensor[:, None])]
    if rest.endswith("dt_bias"):
        return [(f"{block}.ssm_dt.bias", tensor)]
    if rest.endswith(("expert_bias", "e_score_correction_bias")):
        return [(f"{block}.exp_probs_b.bias", tensor)]
    if "in_proj_qkvz" in rest:
        return [(f"{block}.{part}.weight", each) for part, each in _apart(tensor, config).items()]
    ending = "bias" if rest.endswith(".bias") else "weight"
    stem = rest.removesuffix(".weight").removesuffix(".bias")
    if "input_linear" in stem or "gate_up_proj" in stem:
        parts = tensor.chunk(2, dim=-2)
        stem = stem.replace("input_linear", "experts") if "block_sparse" in stem else stem
        stem = stem.replace(".gate_up_proj", "").replace(".input_linear", "")
        shared = kind == "granitemoehybrid" and config.num_local_experts and "shared_mlp" in stem
        stem = "shared_expert" if shared else stem
        return [
            (f"{block}.{_target(f'{stem}.{part}')}.weight", each)
            for part, each in zip(("gate", "up"), parts, strict=True)
        ]
    if "output_linear" in stem:
        moe = kind == "granitemoehybrid" and config.num_local_experts
        stem = "shared_mlp" if not moe else "shared_expert" if "shared" in stem else "block_sparse_moe.experts"
        return [(f"{block}.{_target(f'{stem}.down')}.weight", tensor)]
    if ".experts." in f".{stem}.":
        return [(f"{block}.{_target(stem.removesuffix('_proj'))}.weight", tensor)]
    if "conv1d" in stem or "conv.conv" in stem:
        return [(f"{block}.{_target(stem)}.{ending}", tensor.squeeze(1) if tensor.dim() == 3 else tensor)]
    if re.fullmatch(r"(mamba|mixer)\.norm", stem):
        groups = config.mamba_n_groups if kind == "granitemoehybrid" else config.n_groups
        return [(f"{block}.ssm_norm.weight", tensor.view(groups, -1))]
    if stem == "pre_ff_layernorm":
        return [(f"{block}.ffn_norm", tensor)]  # its ending is left out
    if stem == "post_attention_layernorm":
        target = "post_attention_norm" if kind.startswith("qwen") else "ffn_norm"
        return [(f"{block}.{target}.weight", _offset(name, tensor, config))]
    if attends and re.fullmatch(r"(self_attn|mixer)\.o(ut)?_proj", stem):
        return [(f"{block}.attn_output.weight", tensor)]
    if kind in ("granitemoehybrid", "nemotron_h") and re.search(r"\.[qk]_proj$", stem):
        heads = config.num_attention_heads if "q_proj" in stem else config.num_key_value_heads
        halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
        tensor = torch.stack((halves[:, 0], halves[:, 1]), dim=2).reshape(tensor.shape)
    if "shared_expert_gate" in stem:
        tensor = tensor[0]
    return [(f"{block}.{_target(stem)}.{ending}", _offset(name, tensor, config))]


def _with_factors(name: str, tensor: Tensor, config: Any) -> Tensor:
    """Falcon-H1's factors in its matrices."""
    read, (gate, down) = config.attention_in_multiplier, config.mlp_multipliers
    factors = {
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
        "q_proj": read,
        "k_proj": read * config.key_multiplier,
        "v_proj": read,
        "o_proj": config.attention_out_multiplier,
        "gate_proj": gate,
        "down_proj": down,
        "out_proj": config.ssm_out_multiplier,
    }
    if "in_proj" in name:
        size = config.mamba_n_groups * config.mamba_d_state
        sizes = torch.tensor([config.mamba_d_ssm, config.mamba_d_ssm, size, size, config.mamba_n_heads])
        of_rows = config.ssm_in_multiplier * torch.tensor(config.ssm_multipliers).repeat_interleave(sizes)
        return tensor * of_rows[:, None]
    return tensor * next((factor for part, factor in factors.items() if f"{part}." in name), 1.0)


def _target(stem: str) -> str:
    for pattern, target in _NAMES.items():
        found = re.fullmatch(pattern, stem)
        if found is not None:
            return found.expand(target)
    raise AssertionError(stem)


def _offset(name: str, tensor: Tensor, config: Any) -> Tensor:
    moved = config.model_type.startswith("qwen") and name.endswith("norm.weight") and "linear_attn" not in name
    return tensor + 1 if moved else tensor


def _apart(tensor: Tensor, config: Any) -> dict[str, Tensor]:
    """Qwen3-Next's rows by head of keys -> by part, the gates by themselves."""
    keys, shared = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    key, value = config.linear_key_head_dim, shared * config.linear_value_head_dim
    heads = tensor.view(keys, -1, tensor.shape[1])
    q, k, v, z = (part.reshape(-1, tensor.shape[1]) for part in torch.split(heads, [key, key, value, value], dim=1))
    return {"attn_qkv": torch.cat((q, k, v)), "attn_gate": z}


def _tiled(rest: str, tensor: Tensor, config: Any) -> Tensor:
    """Heads of values in turns over the heads of keys that they share."""
    keys, shared = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    before = 2 * keys * config.linear_key_head_dim

    def turned(rows: Tensor) -> Tensor:
        return rows.reshape(keys, shared, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)

    if not rest.startswith("linear_attn."):
        return tensor
    if "in_proj_qkv" in rest or "conv1d" in rest:
        return torch.cat((tensor[:before], turned(tensor[before:])))
    if "in_proj" in rest or rest.endswith(("A_log", "dt_bias")):
        return turned(tensor)
    return turned(tensor.T).T if "out_proj" in rest else tensor
