"""Writing model folders in Hugging Face's form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig, RopeConfig
from headstart.models.families import tensor_layout
from headstart.models.families.base import TensorLayout
from headstart.models.families.module_layouts import multi_token_layout
from headstart.models.linear_weights import LinearWeights
from headstart.models.multi_token_modules import MultiTokenModule, layout_of_modules
from headstart.models.rope_frequencies import inverse_frequencies
from headstart.models.weights import AttentionWeights, DecoderWeights, LayerWeights, MlpWeights
from headstart_train.files.tensors import write_tensors

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}


def save_model(
    config: ModelConfig,
    weights: DecoderWeights,
    directory: Path,
    *,
    dtype: torch.dtype | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write ``config.json`` and ``model.safetensors``, which Headstart and transformers read.

    Files of these names are replaced. The tokenizer is not written: it is the original model's.

    Args:
        dtype: of matrices; None: as they are.
        more: further entries of ``config.json``, which other readers pass over.

    Raises:
        CheckpointError: the model is of a family that cannot be written (Llama's kin can).
    """
    check_writable(config)
    description = _description(config, weights, dtype or weights.embedding.dtype) | dict(more or {})
    _write(directory, _tensors(config, weights), description, dtype)


def check_writable(config: ModelConfig) -> None:
    """Refuse a model that ``save_model`` would.

    Raises:
        CheckpointError: it is of another family than Llama's kin.
    """
    if config.family not in _ARCHITECTURES:
        raise CheckpointError(
            f"a model of family {config.family!r} cannot be written; only {', '.join(_ARCHITECTURES)} can."
        )


def _description(config: ModelConfig, weights: DecoderWeights, dtype: torch.dtype) -> dict[str, Any]:
    rope = _described_rope(config.ropes[0], weights.rope_factors)
    windows = {layer.window for layer in config.layers} - {None}
    ends = list(config.eos_token_ids)
    description = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "dtype": str(dtype).removeprefix("torch."),
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.mlp.activation, config.mlp.activation),
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norms.eps,
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "tie_word_embeddings": weights.head.weight is weights.embedding,
        "bos_token_id": config.bos_token_id,
        "pad_token_id": None,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "sliding_window": next(iter(windows), None),
    }
    if config.family == "qwen2":
        return description | _described_windows(config)
    description["attention_bias"] = config.attention.qkv_bias
    if config.family in ("llama", "smollm3"):
        description["mlp_bias"] = config.mlp.bias
    if config.family in ("qwen3", "smollm3"):
        description |= _described_windows(config)
    if config.family == "smollm3":
        description["no_rope_layers"] = [int(layer.rope is not None) for layer in config.layers]
    return description


def _described_windows(config: ModelConfig) -> dict[str, Any]:
    kinds = ["full_attention" if layer.window is None else "sliding_attention" for layer in config.layers]
    return {"use_sliding_window": "sliding_attention" in kinds, "layer_types": kinds}


def _described_rope(rope: RopeConfig, factors: Tensor | None) -> RopeConfig:
    """Llama 3's scaling told from its table: every released model has these bounds, and its own factor."""
    if factors is None:
        return rope
    scaling: dict[str, float | int | str] = {
        "rope_type": "llama3",
        "factor": round(float(factors.max()), 3),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    described = replace(rope, scaling=scaling)
    if rope.scaling is not None or not torch.allclose(
        inverse_frequencies(described), inverse_frequencies(rope, factors), rtol=1e-5, atol=0
    ):
        raise CheckpointError(
            "the model's table of rotary factors is not Llama 3's and cannot be written to config.json; "
            "start from the model's Hugging Face directory."
        )
    return described


def _tensors(config: ModelConfig, weights: DecoderWeights) -> dict[str, Tensor]:
    layout = tensor_layout(config, "hf")
    tensors = {
        f"{layout.prefix}{layout.embedding}.weight": weights.embedding,
        f"{layout.prefix}{layout.final_norm}.weight": weights.final_norm.weight,
    }
    if weights.head.weight is not weights.embedding:
        tensors[f"{layout.head}.weight"] = weights.head.weight

    for index, layer in enumerate(weights.layers):
        tensors |= _layer_tensors(config, layout, index, layer)
    return _apart(tensors)


def save_modules(
    config: ModelConfig,
    target: DecoderWeights,
    modules: Sequence[MultiTokenModule],
    directory: Path,
    *,
    description: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write multi-token modules by themselves, named as the target's family has them, with its ``config.json``.

    Args:
        config, target: the target's.
        description: its own ``config.json``; None: written from ``config``, as ``save_model`` does. What it says of
            quantised weights is left out: these are not.
        dtype, more: as there.

    Raises:
        CheckpointError: the layers of this family cannot be written.
    """
    check_modules_writable(config)
    names = multi_token_layout(config, "hf")
    layout = layout_of_modules(tensor_layout(config, "hf"), "hf", names)
    tensors: dict[str, Tensor] = {}
    for place, module in enumerate(modules):
        number = names.number(place, config)
        tensors |= _layer_tensors(config, layout, number, module.layer)
        for name, weight in (
            (names.embedding_norm, module.embedding_norm.weight),
            (names.hidden_norm, module.hidden_norm.weight),
            (names.projection, module.projection.weight),
            (names.final_norm, module.final_norm.weight),
        ):
            tensors[f"{name.format(i=number)}.weight"] = weight
    told = _description(config, target, dtype or torch.float32) if description is None else _unquantised(description)
    _write(directory, _apart(tensors), dict(told) | dict(more or {}), dtype)


def _unquantised(description: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _unquantised(entry) if key == "text_config" and isinstance(entry, Mapping) else entry
        for key, entry in description.items()
        if key != "quantization_config"
    }


def check_modules_writable(config: ModelConfig) -> None:
    """Refuse a target whose modules ``save_modules`` cannot write.

    Raises:
        CheckpointError: its layers are not those of Llama's kin.
    """
    if config.family not in (*_ARCHITECTURES, "mimo"):
        raise CheckpointError(
            f"multi-token modules of family {config.family!r} cannot be written; only those of "
            f"{', '.join(_ARCHITECTURES)} and mimo can."
        )


def _layer_tensors(config: ModelConfig, layout: TensorLayout, index: int, layer: LayerWeights) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    mixer, channel = layer.mixer, layer.channel
    assert isinstance(mixer, AttentionWeights)
    assert isinstance(channel, MlpWeights)

    def add(roles: Sequence[str], linear: LinearWeights, sizes: Sequence[int]) -> None:
        for ending, whole in (("weight", linear.weight), ("bias", linear.bias)):
            if whole is not None:
                for role, part in zip(roles, torch.split(whole, list(sizes)), strict=True):
                    tensors[f"{layout.prefix}{layout.layer[role].format(i=index)}.{ending}"] = part

    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    add(("q", "k", "v"), mixer.qkv, (q, kv, kv))
    add(("output",), mixer.output, (config.hidden_size,))
    add(("gate", "up"), channel.up, (config.mlp_size, config.mlp_size))
    add(("down",), channel.down, (config.hidden_size,))
    norms = {
        "attention_norm": layer.attention_norm,
        "mlp_norm": layer.mlp_norm,
        "q_norm": mixer.q_norm,
        "k_norm": mixer.k_norm,
    }
    for role, norm in norms.items():
        if norm is not None:
            tensors[f"{layout.prefix}{layout.layer[role].format(i=index)}.weight"] = norm.weight
    return tensors


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # The parts of a fused matrix share memory, which safetensors does not write.
    return {name: tensor.cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _write(
    directory: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any], dtype: torch.dtype | None
) -> None:
    stored = {
        name: tensor if dtype is None or tensor.dim() == 1 else tensor.to(dtype) for name, tensor in tensors.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "model.safetensors", stored)
    (directory / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
