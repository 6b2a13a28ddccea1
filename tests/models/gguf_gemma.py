"""Tiny GGUF files of Gemma 3n and 4, by the rules of llama.cpp's converter (conversion/gemma.py), written here anew.

Names of tensors come from the ``gguf`` package's own map.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf_blocks import random_blocks
from torch import Tensor
from transformers import PreTrainedModel

ARCHITECTURES = {
    "gemma3n_text": gguf.MODEL_ARCH.GEMMA3N,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
    "gemma4_unified_text": gguf.MODEL_ARCH.GEMMA4,
}
UNTURNED = 1e30
"""Factor of a pair that does not turn."""


def write_gemma(model: PreTrainedModel, path: Path, blocks: Mapping[str, str] | None = None) -> Path:
    """``blocks``: type of tensors that are random blocks, by the model's names; they become its weights, too."""
    config, blocks = SimpleNamespace(**model.config.to_dict()), blocks or {}
    arch = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _metadata(writer, config)
    stored, generator = {}, np.random.default_rng(5)
    for name, kind in blocks.items():
        tensor = model.state_dict()[name]
        rows, inputs = tensor.flatten(0, -2).shape
        data = random_blocks(kind, rows, inputs, generator)
        values = gguf.quants.dequantize(data, GGMLQuantizationType[kind])
        tensor.copy_(torch.from_numpy(values).view(tensor.shape))
        stored[_target(names, name)] = data.reshape(*tensor.shape[:-1], -1), GGMLQuantizationType[kind]
    tensors = _converted(model, config, names)
    if arch is gguf.MODEL_ARCH.GEMMA4:
        tensors["rope_freqs.weight"] = _factors(config)
    for name, tensor in tensors.items():
        if name in stored:
            data, type_of_it = stored[name]
            writer.add_tensor(name, data, raw_dtype=type_of_it)
        else:
            writer.add_tensor(name, tensor.contiguous().float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _converted(model: PreTrainedModel, config: Any, names: gguf.TensorNameMap) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    stacks: dict[str, list[Tensor]] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        layer = re.fullmatch(r"model\.layers\.(\d+)\.router\.(scale|per_expert_scale)", name)
        if layer is not None:
            part = "ffn_gate_inp" if layer[2] == "scale" else "ffn_down_exps"
            found[f"blk.{layer[1]}.{part}.scale"] = tensor
            continue
        ends = re.fullmatch(r"(model\.altup(?:_unembed)?_projections)\.\d+\.weight", name)
        if ends is not None:
            stacks.setdefault(f"{ends[1]}.weight", []).append(tensor)
            continue
        if "embed_tokens" in name:
            missing = config.vocab_size - len(tensor)
            tensor = torch.cat((tensor, tensor.new_zeros(missing, tensor.shape[1])))
        found[_target(names, name)] = tensor
    for name, matrices in stacks.items():
        found[_target(names, name)] = torch.stack(matrices)
    return found


def _target(names: gguf.TensorNameMap, name: str) -> str:
    name = name if name.endswith(".weight") else f"{name}.weight"
    target = names.get_name(name, try_suffixes=(".weight",))
    assert target is not None, name
    return target


def _factors(config: Any) -> Tensor:
    pairs = _wide(config) // 2
    turning = int(pairs * config.rope_parameters["full_attention"]["partial_rotary_factor"])
    return torch.tensor([1.0] * turning + [UNTURNED] * (pairs - turning))


def _own(config: Any, key: str, default: int) -> int:
    """What layers that see everything have of their own."""
    own = (layer.get(key) for layer in (config.per_layer_config or {}).values())
    return next((each for each in own if each is not None), default)


def _wide(config: Any) -> int:
    return _own(config, "head_dim", config.head_dim)


def _metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    count, shared = config.num_hidden_layers, config.num_kv_shared_layers
    writer.add_block_count(count)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input or 0)
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    if config.model_type == "gemma3n_text":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_altup_active_idx(config.altup_active_idx)
        writer.add_altup_num_inputs(config.altup_num_inputs)
        shares = config.activation_sparsity_pattern
        # As the converter computes them, in single precision.
        scales = [NormalDist().inv_cdf(share) if share else float("-inf") for share in shares]
        writer.add_activation_sparsity_scale([float(np.float32(scale)) for scale in scales])
        return
    wide = _wide(config)
    writer.add_key_length(wide)
    writer.add_value_length(wide)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(wide)
    writer.add_rope_dimension_count_swa(config.head_dim)
    size = config.intermediate_size
    sizes = [size if index < count - shared else 2 * size for index in range(count)]
    writer.add_feed_forward_length(sizes if config.use_double_wide_mlp else size)
    few = _own(config, "num_key_value_heads", config.num_key_value_heads)
    by_layer = [config.num_key_value_heads if each else few for each in slides]
    writer.add_head_count_kv(by_layer if few != config.num_key_value_heads else few)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
