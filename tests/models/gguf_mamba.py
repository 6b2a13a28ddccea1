"""Tiny GGUF files of Mamba, Falcon-Mamba, Jamba and Mamba-2, by the rules of llama.cpp's converter
(conversion/mamba.py, jamba.py there), written here anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
from torch import Tensor
from transformers import PreTrainedModel

ARCHITECTURES = {"mamba": "mamba", "falcon_mamba": "mamba", "mamba2": "mamba2", "jamba": "jamba"}
_TABLES = {
    r".*\.embed(dings|_tokens)": "token_embd",
    r".*\.(norm_f|final_layernorm)": "output_norm",
    "lm_head": "output",
}
_LAYER = {
    "norm": "attn_norm",
    "input_layernorm": "attn_norm",
    "pre_ff_layernorm": "ffn_norm",
    r"self_attn\.([qkv])_proj": r"attn_\1",
    r"self_attn\.o_proj": "attn_output",
    r"feed_forward\.(gate|up|down)_proj": r"ffn_\1",
    r"feed_forward\.router": "ffn_gate_inp",
    r"feed_forward\.experts\.down_proj": "ffn_down_exps",
    r"(?:mixer|mamba)\.in_proj": "ssm_in",
    r"(?:mixer|mamba)\.conv1d": "ssm_conv1d",
    r"(?:mixer|mamba)\.x_proj": "ssm_x",
    r"(?:mixer|mamba)\.dt_proj": "ssm_dt",
    r"(?:mixer|mamba)\.(dt|b|c)_layernorm": r"ssm_\1_norm",
    r"mixer\.norm": "ssm_norm",
    r"(?:mixer|mamba)\.out_proj": "ssm_out",
}


_FLOATS = ("norm", "inp", ".ssm_a", ".ssm_d", "conv1d", "ssm_x", "bias")
"""Parts of names of tensors that are never quantised: llama.cpp, src/llama-quant.cpp."""


def write_mamba(model: PreTrainedModel, path: Path, quantised: str | None = None) -> Path:
    """``quantised``: the type of matrices whose rows can be, but for the small ones of Mamba 1."""
    config: Any = model.config
    kind = config.model_type
    writer = gguf.GGUFWriter(path, ARCHITECTURES[kind])
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    if kind == "jamba":
        _jamba(writer, config)
    else:
        writer.add_context_length(1 << 20)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
        writer.add_ssm_conv_kernel(config.conv_kernel)
        writer.add_ssm_state_size(config.state_size)
        writer.add_ssm_inner_size(config.expand * config.hidden_size)
        writer.add_ssm_time_step_rank(config.num_heads if kind == "mamba2" else config.time_step_rank)
    if kind == "mamba2":
        writer.add_ssm_group_count(config.n_groups)
    elif kind != "jamba":
        writer.add_ssm_dt_b_c_rms(kind == "falcon_mamba")
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for target, values in _converted(name, tensor, config):
            array = values.contiguous().float().numpy()
            kind = None if quantised is None else gguf.GGMLQuantizationType[quantised]
            if (
                kind is None
                or any(part in target for part in _FLOATS)
                or array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]
            ):
                writer.add_tensor(target, array)
            else:
                writer.add_tensor(target, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _jamba(writer: gguf.GGUFWriter, config: Any) -> None:
    attends = [kind == "attention" for kind in config.layers_block_type]
    writer.add_context_length(config.max_position_embeddings)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([config.num_key_value_heads if each else 0 for each in attends])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
    writer.add_ssm_time_step_rank(config.mamba_dt_rank)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)


def _converted(name: str, tensor: Tensor, config: Any) -> list[tuple[str, Tensor]]:
    """What becomes of a tensor: names and values in the file."""
    layer = re.fullmatch(r".*\.layers\.(\d+)\.(.*)", name)
    if layer is None:
        return [(f"{_found(_TABLES, name.removesuffix('.weight'))}.weight", tensor)]
    block, rest = f"blk.{layer[1]}", layer[2]
    by_head = config.model_type == "mamba2"
    if rest.endswith("A_log"):
        return [(f"{block}.ssm_a", -tensor.exp()[:, None] if by_head else -tensor.exp())]
    if rest.endswith(".D"):
        return [(f"{block}.ssm_d", tensor[:, None] if by_head else tensor)]
    if rest.endswith("dt_bias"):
        return [(f"{block}.ssm_dt.bias", tensor)]
    if rest.endswith("gate_up_proj"):
        gate, up = tensor.chunk(2, dim=1)
        return [(f"{block}.ffn_gate_exps.weight", gate), (f"{block}.ffn_up_exps.weight", up)]
    ending = "bias" if rest.endswith(".bias") else "weight"
    stem = rest.removesuffix(".weight").removesuffix(".bias")
    if stem == "mixer.norm":
        tensor = tensor.view(config.n_groups, -1)
    if stem.endswith("conv1d") and ending == "weight":
        tensor = tensor.squeeze(1)
    return [(f"{block}.{_found(_LAYER, stem)}.{ending}", tensor)]


def _found(names: dict[str, str], stem: str) -> str:
    for pattern, target in names.items():
        found = re.fullmatch(pattern, stem)
        if found is not None:
            return found.expand(target)
    raise AssertionError(stem)
