"""Random tiny checkpoints of every family, made with transformers' own classes, which are the reference."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from more_families import MORE_FAMILIES
from torch import Tensor
from transformers import PreTrainedModel

SIZES = {
    "vocab_size": 101,
    "hidden_size": 36,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {"head_dim": 8}
TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.25, 2.5],
    "long_factor": [1.0, 4.0, 9.0],
}
PHI = {**SIZES, "hidden_size": 48, "pad_token_id": 0}
GEMMA = {**HEADS, "layer_types": TYPES, "sliding_window": 7, "query_pre_attn_scalar": 12, "pad_token_id": 0}
EYES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2} | {
    "image_size": 28,
    "patch_size": 14,
}
GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.3,
    "logits_scaling": 0.7,
    "rms_norm_eps": 1e-2,
}
"""An epsilon that shows."""
GRANITE4 = {"shared_intermediate_size": 44, "num_local_experts": 0, "layer_types": ["full_attention"] * 4} | {
    "position_embedding_type": "rope",
    "mamba_n_heads": 2,
}
NEOX = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"} | {"hidden_size": 48}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**SIZES}),
    "llama-tied-biased": ("Llama", {**SIZES, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama3": ("Llama", {**SIZES, **HEADS, "rope_parameters": LLAMA3}),
    "qwen3-yarn": ("Qwen3", {**SIZES, **HEADS, "rope_parameters": YARN}),
    "llama-linear": ("Llama", {**SIZES, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama-dynamic": (
        "Llama",
        {**SIZES, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "mistral": ("Mistral", {**SIZES, **HEADS, "sliding_window": 7}),
    "mistral-full": ("Mistral", {**SIZES, "sliding_window": None}),
    "qwen2": ("Qwen2", {**SIZES}),
    "qwen2-window": ("Qwen2", {**SIZES, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {**SIZES, **HEADS}),
    "smollm3": ("SmolLM3", {**SIZES, "no_rope_layers": [1, 0, 1, 0], "pad_token_id": 0}),
    "phi3": ("Phi3", {**PHI, "sliding_window": 7}),
    "phi3-longrope": (
        "Phi3",
        {**PHI, "tie_word_embeddings": True, "rope_parameters": LONGROPE, "original_max_position_embeddings": 256},
    ),
    "granite": ("Granite", {**SIZES, **GRANITE}),
    "granite-tied-biased": (
        "Granite",
        {**SIZES, **GRANITE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "granite4": ("GraniteMoeHybrid", {**SIZES, **GRANITE, **GRANITE4}),
    "granite4-unrotated": ("GraniteMoeHybrid", {**SIZES, **GRANITE, **GRANITE4, "position_embedding_type": None}),
    "gemma2": ("Gemma2", {**SIZES, **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", {**SIZES, **GEMMA}),
    "gemma3-seeing": ("Gemma3", {"text_config": {**SIZES, **GEMMA}, "vision_config": EYES}),
    "gpt2": (
        "GPT2",
        {"vocab_size": 101, "n_positions": 128, "n_embd": 36, "n_layer": 3, "n_head": 6, "n_inner": 52}
        | {"bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt-neox": ("GPTNeoX", {**NEOX, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    "gpt-neox-sequential": ("GPTNeoX", {**NEOX, "use_parallel_residual": False}),
}
_MODELS = {
    "Gemma3Text": "Gemma3ForCausalLM",
    "Gemma3": "Gemma3ForConditionalGeneration",
    "Gemma3nText": "Gemma3nForCausalLM",
    "Gemma4Text": "Gemma4ForCausalLM",
    "GPT2": "GPT2LMHeadModel",
    "Llama4Text": "Llama4ForCausalLM",
    "Qwen3_5Text": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeText": "Qwen3_5MoeForCausalLM",
} | {
    name: f"{name}ForConditionalGeneration"
    for name in (
        "Gemma4",
        "Gemma4Unified",
        "Llama4",
        "Llava",
        "Mistral3",
        "Qwen2VL",
        "Qwen2_5_VL",
        "Exaone4_5_",
        "Step3p7",
        "Glm5Next",
        "Qwen3VL",
        "Qwen3VLMoe",
    )
}


def make_model(family: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A model with weights large enough that every part of it shows in the logits."""
    name, settings = {**FAMILIES, **MORE_FAMILIES}[family]
    given = deepcopy({**settings, **changes})  # some configurations write into what they are given
    config = getattr(transformers, f"{name}Config")(**given)
    # transformers' eager Falcon counts ALiBi twice; its other form does not.
    config._attn_implementation = "sdpa" if getattr(config, "alibi", False) else "eager"
    if family == "hy_v4":
        # Its published weights are of models that turn neighbours, whatever transformers does.
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave
        from transformers.models.hy_v4 import modeling_hy_v4

        modeling_hy_v4.apply_rotary_pos_emb = apply_rotary_pos_emb_interleave
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(transformers, _MODELS.get(name, f"{name}ForCausalLM"))(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.2 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if "correction" in name or "expert_bias" in name:
                buffer.normal_(0, 0.2)
            elif "tid2eid" in name:
                scores = torch.rand(len(buffer), config.num_local_experts)
                buffer.copy_(scores.topk(buffer.shape[1]).indices)
            elif "layer_scalar" in name:
                buffer.uniform_(0.7, 1.3)
    return model


def save_model(model: PreTrainedModel, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """[token, vocab] of one sequence, without cache."""
    logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits
