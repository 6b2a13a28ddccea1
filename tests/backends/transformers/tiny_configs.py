"""Tiny random models of every decoder-only type that transformers has, by changing the sizes of its own defaults."""

from __future__ import annotations

from typing import Any

VOCAB = 272
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "d_model": 48,
    "n_embd": 48,
    "intermediate_size": 52,
    "n_inner": 52,
    "ffn_hidden_size": 52,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "num_hidden_layers": 4,
    "n_layer": 3,
    "n_layers": 3,
    "num_layers": 4,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "n_ctx": 256,
    "sliding_window": 5,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MLA = {"head_dim": 8, "num_key_value_heads": 4}
MAMBA2 = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16}
DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
}
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
ROPES = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")}
GEMMA4 = {
    "layer_types": WINDOWS,
    "rope_parameters": ROPES,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
}
LINEAR_FULL = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
OVERRIDES: dict[str, dict[str, Any]] = {
    "axk1": MLA,
    "axk2": MLA,
    "bailing_hybrid": {
        **MLA,
        "layer_types": LINEAR_FULL,
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_experts_per_token": 2,
        "num_key_value_heads": 4,
        "model_max_length": 256,
    },
    "bamba": {**MAMBA2, "attn_layer_indices": [1, 3], "hidden_size": 48},
    "codegen": {"rotary_dim": 8},
    "ctrl": {"dff": 52},
    "dbrx": {
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4},
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "deepseek_v2": MLA,
    "deepseek_v3": {**MLA, "n_group": 2, "topk_group": 1},
    "deepseek_v32": {**MLA, "n_group": 2, "topk_group": 1, "index_n_heads": 16, "index_head_dim": 16, "index_topk": 4},
    "dots1": {"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "falcon": {"head_dim": None},
    "falcon_h1": {**MAMBA2, "mamba_d_ssm": 96},
    "gemma3n_text": {
        **GEMMA4,
        "intermediate_size": [52] * 4,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.5, 0.0, 0.5, 0.0],
    },
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "window_size": 5},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {**MAMBA2, "layer_types": ["mamba", "attention", "mamba", "attention"]},
    "helium": {"hidden_size": 64},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_dt_rank": 4, "expert_layer_offset": 1},
    "kimi_linear": {
        **MLA,
        "layer_types": LINEAR_FULL,
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "linear_head_dim": 8,
        "linear_num_heads": 4,
        "num_key_value_heads": 4,
        "num_experts_per_token": 2,
        "model_max_length": 256,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm3": {"layer_types": ["conv", "full_attention", "conv", "sliding_attention"]},
    "longcat_flash": MLA,
    "mamba2": {"num_heads": 6, "head_dim": 16, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    "minicpm3": MLA,
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
        "ssm_state_size": 8,
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "moe_shared_expert_intermediate_size": 16,
    },
    "olmo_hybrid": DELTA,
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA,
    "qwen3_next": DELTA,
    "rwkv": {"attention_hidden_size": 48, "context_length": 256},
    "stablelm": {"num_key_value_heads": 4, "hidden_size": 64},
    "xlstm": {"num_heads": 2, "embedding_dim": 48, "num_blocks": 2, "num_hidden_layers": 2, "v_head_dim": None},
    "youtu": MLA,
    "zamba": {
        "attention_hidden_size": 96,
        "attention_head_dim": 24,
        "num_key_value_heads": 4,
        "mamba_dt_rank": 4,
        "num_hidden_layers": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zamba2": {
        "num_key_value_heads": 4,
        "n_mamba_heads": 4,
        "mamba_d_state": 8,
        "chunk_size": 16,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zaya": {"layer_types": ["hybrid"] * 4, "router_hidden_size": 16, "num_experts_per_tok": 1},
}

SHOWN = (
    *("cohere2", "gemma3n_text", "gpt_oss", "deepseek_v3"),  # all sequences in one call
    *("bloom", "granitemoehybrid", "qwen3_next", "deepseek_v4", "rwkv"),  # path by path
    *("mamba", "recurrent_gemma"),  # token by token, and each text anew
)
"""One of each kind of layer."""
KINDS = (
    *("afmoe", "apertus", "arcee", "aria_text", "axk2", "bailing_hybrid", "bamba", "biogpt", "bitnet", "bloom"),
    *("codegen", "cohere", "cohere2", "ctrl", "cwm", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"),
    *("diffllama", "doge", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon", "falcon_h1"),
    *("falcon_mamba", "flex_olmo", "flint", "gemma", "gemma3n_text", "gemma4_text", "gemma4_unified_text", "glm"),
    *("glm4", "glm4_moe", "gpt_bigcode", "gpt_neo", "gpt_oss", "gptj", "granite_swa", "granitemoe"),
    *("granitemoehybrid", "granitemoeshared", "helium", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3"),
    *("hyperclovax", "inkling_text", "jais2", "jamba", "jetmoe", "kimi_linear", "laguna", "lfm2", "lfm2_moe", "lfm3"),
    *("llama4_text", "longcat_flash", "mamba", "mamba2", "mellum", "mimo_v2_flash", "minicpm3", "minimax"),
    *("minimax_m2", "ministral", "ministral3", "mixtral", "modernbert-decoder", "mpt", "nanochat", "nemotron"),
    *("nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "openai-gpt", "opt", "persimmon", "phi"),
    *("phimoe", "qwen2_moe", "qwen3_5_text", "qwen3_moe", "qwen3_next", "recurrent_gemma", "rwkv", "seed_oss"),
    *("solar_open", "stablelm", "starcoder2", "vaultgemma", "xglm", "xlstm", "youtu", "zamba", "zamba2", "zaya"),
)
"""Decoders that transformers 5.23 can make tiny."""
