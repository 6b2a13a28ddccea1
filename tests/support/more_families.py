"""Settings of random tiny models of further families, for transformers' classes: what every part of them shows in."""

from __future__ import annotations

from typing import Any

TINY: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 64,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 257,
    "eos_token_id": 258,
    "pad_token_id": 0,
}
WINDOWS = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
BIASED = {"attention_bias": True, "mlp_bias": True}
MHA = {key: value for key, value in TINY.items() if key != "num_key_value_heads"}
GPT: dict[str, Any] = {"vocab_size": 259, "n_positions": 256, "n_embd": 64, "n_layer": 3, "n_head": 4} | {
    "bos_token_id": 257,
    "eos_token_id": 258,
}
FALCON: dict[str, Any] = {"vocab_size": 259, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4} | {
    "bos_token_id": 257,
    "eos_token_id": 258,
}
SCALED = {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.4} | {
    "attention_multiplier": 0.3
}
EYES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
} | {
    "image_size": 28,
    "patch_size": 14,
    "model_type": "clip_vision_model",
}
QWEN_EYES: dict[str, Any] = {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "num_heads": 2} | {
    "intermediate_size": 32
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
MOE = {"num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 3} | {
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
GROUPED = {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": True} | {
    "routed_scaling_factor": 1.7
}
LATENT = {"q_lora_rank": 20, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10} | {
    "num_key_value_heads": 4
}
INDEXED = {"index_topk": 24, "index_head_dim": 64, "index_n_heads": 16}
JOINT_LATENT = {key: size for key, size in LATENT.items() if key != "q_lora_rank"}
KDA = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]} | {
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "linear_head_dim": 12,
    "linear_num_heads": 4,
}
LING = {**TINY, **MOE, **JOINT_LATENT, **KDA, "num_expert_group": 4, "topk_group": 2} | {
    "num_experts_per_token": 3,
    "model_max_length": 256,
    "num_nextn_predict_layers": 0,
}
GLM5_NEXT = {**TINY, **MOE, **LATENT, **KDA, "qk_rope_head_dim": 0, "n_shared_experts": 1, "pad_token_id": 0} | {
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    "indexer_types": ["full"] * 3,
    "index_topk": 12,
    "index_kpool": 4,
    "index_head_dim": 32,
    "index_n_heads": 16,
    "swiglu_limit": 0.9,
    "hc_sinkhorn_iters": 5,
}
GLM5_EYES = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "image_size": 28} | {
    "out_hidden_size": 64
}
HY_V4 = {"num_experts_per_tok": 3, **INDEXED} | {
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "indexer_types": ["full", "shared", "full"],
    "swiglu_limit": 0.9,
    "hc_magnitude": 1.7,
}
_COMPRESSED = ("compressed_sparse_attention", "heavily_compressed_attention")
DEEPSEEK_V4 = {
    **{key: value for key, value in {**TINY, **MOE}.items() if key not in ("intermediate_size", "num_key_value_heads")},
    "num_hidden_layers": 4,
    "head_dim": 32,
    "partial_rotary_factor": 0.25,
    "sliding_window": 7,
    "q_lora_rank": 20,
    "o_groups": 2,
    "o_lora_rank": 12,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 4,
    "layer_types": [_COMPRESSED[1], _COMPRESSED[0], "sliding_attention", _COMPRESSED[0]],
    "compress_rates": dict(zip(_COMPRESSED, (4, 16), strict=True)),
    "mlp_layer_types": ["hash_moe", "moe", "hash_moe", "moe"],
    "swiglu_limit": 0.9,
    "hc_sinkhorn_iters": 3,
    "rope_parameters": {key: value for key, value in YARN.items() if key != "rope_theta"},
}
"""More heads of the indexer than make a tie of zeros likely, which transformers may break in any order."""
LONGCAT = {"num_hidden_layers": 4, "zero_expert_num": 4, "head_dim": 8}
CONVOLUTIONS = ["conv", "full_attention", "conv"]
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4}
MAMBA1: dict[str, Any] = {
    key: value for key, value in TINY.items() if "intermediate" not in key and "attention" not in key
} | {"state_size": 6}
RECURRENT = ["linear_attention", "full_attention", "linear_attention"]
DELTA: dict[str, Any] = {**TINY, "head_dim": 16, "layer_types": RECURRENT} | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
}
FALCON_H1: dict[str, Any] = {**TINY, **MAMBA, "mamba_d_ssm": 96, "embedding_multiplier": 2.0, "key_multiplier": 0.7} | {
    "lm_head_multiplier": 0.6,
    "mlp_multipliers": [0.8, 1.3],
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.9,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
    "ssm_in_multiplier": 1.3,
    "ssm_out_multiplier": 0.8,
}
NEMOTRON: dict[str, Any] = {**TINY, **MOE, **GROUPED, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 12} | {
    "n_groups": 2,
    "ssm_state_size": 10,
    "moe_shared_expert_intermediate_size": 40,
    "n_group": 2,
    "topk_group": 1,
}
DBRX: dict[str, Any] = {"vocab_size": 259, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 256} | {
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.8, "rope_theta": 1e4},
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 8, "moe_top_k": 3},
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "bos_token_id": 257,
    "eos_token_id": 258,
}
LLAMA4: dict[str, Any] = {**TINY, **MOE, "intermediate_size_mlp": 80, "attention_chunk_size": 16, "floor_scale": 8} | {
    "interleave_moe_layer_step": 2,
    "attn_scale": 0.3,
    "no_rope_layers": [1, 0, 1],
    "num_experts_per_tok": 2,
    "head_dim": 16,
}

GEMMA4: dict[str, Any] = {**TINY, "num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32} | {
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 259,
    "final_logit_softcapping": 20.0,
}
GEMMA3N: dict[str, Any] = {**GEMMA4, "intermediate_size": [72, 80, 72, 64, 72, 72], "laurel_rank": 10} | {
    "vocab_size_per_layer_input": 200,
    "altup_num_inputs": 3,
    "activation_sparsity_pattern": [0.9, 0.0, 0.3, 0.0, 0.6, 0.0],
}
MIMO_V2: dict[str, Any] = {**TINY, **MOE, "head_dim": 16, "v_head_dim": 10, "sliding_window": 7} | {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
    },
}
STEP: dict[str, Any] = {**TINY, **WINDOWS, "head_dim": 16, "num_sliding_attention_heads": 6} | {
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "share_expert_dim": 40,
    "moe_router_scaling_factor": 1.7,
    "swiglu_limits": [None, 0.4, 0.6],
    "swiglu_limits_shared": [0.5, 0.3, 0.0],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 1.0},
    },
}
STEP_EYES: dict[str, Any] = {"width": 32, "layers": 1, "heads": 2, "mlp_ratio": 2.0, "image_size": 28, "patch_size": 14}

MORE_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2-relu": (
        "GPT2",
        {**GPT, "activation_function": "relu"},
    ),
    "llama-relu2": ("Llama", {**TINY, "hidden_act": "relu2"}),
    "llama-partial": (
        "Llama",
        {**TINY, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "olmo": ("Olmo", {**TINY, "clip_qkv": 0.8}),
    "olmo-unclipped": ("Olmo", TINY),
    "olmo2": ("Olmo2", TINY),
    "olmo3": ("Olmo3", {**TINY, **WINDOWS}),
    "arcee": ("Arcee", {**TINY, **BIASED}),
    "helium": ("Helium", {**TINY, "head_dim": 16}),
    "seed_oss": ("SeedOss", {**TINY, "head_dim": 16, "attention_out_bias": True}),
    "ernie4_5": ("Ernie4_5", {**TINY, "head_dim": 16, "use_bias": True}),
    "hunyuan_v1_dense": ("HunYuanDenseV1", {**TINY, "head_dim": 16}),
    "exaone4": ("Exaone4", {**TINY, **WINDOWS, "head_dim": 16}),
    "exaone4-full": ("Exaone4", {**TINY, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "cwm": ("Cwm", {**TINY, **WINDOWS, "head_dim": 16}),
    "ministral": ("Ministral", {**TINY, **WINDOWS, "head_dim": 16}),
    "ministral3": (
        "Ministral3",
        {**TINY, "head_dim": 16, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}},
    ),
    "apertus": ("Apertus", TINY),
    "nanochat": ("NanoChat", {**TINY, "final_logit_softcapping": 2.0}),
    "hyperclovax": (
        "HyperCLOVAX",
        {**TINY, **SCALED, "use_post_norm": True},
    ),
    "cohere": ("Cohere", {**TINY, "use_qk_norm": True, "logit_scale": 0.5}),
    "cohere2": ("Cohere2", {**TINY, **WINDOWS, "logit_scale": 0.5}),
    "glm": ("Glm", {**TINY, "head_dim": 16}),
    "glm4": ("Glm4", {**TINY, "head_dim": 16}),
    "gemma": ("Gemma", {**TINY, "head_dim": 16, "hidden_act": "gelu"}),
    "vaultgemma": ("VaultGemma", {**TINY, **WINDOWS, "head_dim": 16, "query_pre_attn_scalar": 12}),
    "gemma3n_text": ("Gemma3nText", GEMMA3N),
    "gemma3n_text-plain": (
        "Gemma3nText",
        {**GEMMA3N, "altup_correct_scale": False, "altup_num_inputs": 2, "num_kv_shared_layers": 0}
        | {"activation_sparsity_pattern": None, "intermediate_size": 72},
    ),
    "gemma4_text": ("Gemma4Text", GEMMA4),
    "gemma4_text-experts": (
        "Gemma4Text",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24}
        | {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True}
        | {"num_global_key_value_heads": 1},
    ),
    "gemma4": (
        "Gemma4",
        {"text_config": GEMMA4}
        | {"vision_config": {**EYES, "num_key_value_heads": 2, "head_dim": 16, "model_type": "gemma4_vision"}}
        | {"audio_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}},
    ),
    "gemma4_unified": (
        "Gemma4Unified",
        {
            "text_config": {**TINY, "head_dim": 16, "global_head_dim": 32, "sliding_window": 7}
            | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
        },
    ),
    "granite_swa": ("GraniteSWA", {**TINY, **WINDOWS, **SCALED, "layer_rope_theta": [1e4, 0, 1e3]}),
    "llava": ("Llava", {"text_config": {**TINY, "model_type": "llama"}, "vision_config": EYES}),
    "llava-qwen2": ("Llava", {"text_config": {**TINY, "model_type": "qwen2"}, "vision_config": EYES}),
    "mistral3": (
        "Mistral3",
        {"text_config": {**TINY, "model_type": "mistral"}}
        | {"vision_config": {**EYES, "model_type": "pixtral", "head_dim": 16}},
    ),
    "qwen2_vl": (
        "Qwen2VL",
        {"text_config": {**TINY, "rope_parameters": MROPE}}
        | {"vision_config": {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14}},
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VL",
        {"text_config": {**TINY, "rope_parameters": MROPE}}
        | {"vision_config": {**QWEN_EYES, "fullatt_block_indexes": [0]}},
    ),
    "exaone4_5": (
        "Exaone4_5_",
        {"text_config": {**TINY, **WINDOWS, "head_dim": 16, "model_type": "exaone4"}}
        | {"vision_config": {**QWEN_EYES, "num_key_value_heads": 1}},
    ),
    "qwen3_vl": (
        "Qwen3VL",
        {"text_config": {**TINY, "head_dim": 16, "rope_parameters": MROPE}}
        | {"vision_config": {**QWEN_EYES, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoe",
        {"text_config": {**TINY, **MOE, "head_dim": 16, "rope_parameters": MROPE, "tie_word_embeddings": False}}
        | {"vision_config": {**QWEN_EYES, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}},
    ),
    "stablelm": ("StableLm", {**TINY, "use_qkv_bias": True}),
    "stablelm-parallel": ("StableLm", {**TINY, "use_parallel_residual": True, "qk_layernorm": True}),
    "starcoder2": ("Starcoder2", {**TINY, "sliding_window": 7}),
    "phi": ("Phi", {**TINY, "qk_layernorm": True}),
    "persimmon": ("Persimmon", MHA),
    "nemotron": ("Nemotron", {**TINY, **BIASED}),
    "jais2": ("Jais2", TINY),
    "opt": ("OPT", {**MHA, "ffn_dim": 72}),
    "xglm": (
        "XGLM",
        {"vocab_size": 259, "d_model": 64, "ffn_dim": 72, "num_layers": 3, "attention_heads": 4}
        | {"max_position_embeddings": 256, "bos_token_id": 257, "eos_token_id": 258},
    ),
    "biogpt": ("BioGpt", MHA),
    "gptj": ("GPTJ", {**GPT, "rotary_dim": 8}),
    "codegen": ("CodeGen", {**GPT, "rotary_dim": 8}),
    "gpt_neo": (
        "GPTNeo",
        {"vocab_size": 259, "hidden_size": 64, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 256}
        | {"attention_types": [[["global", "local"], 2]], "window_size": 7, "bos_token_id": 257, "eos_token_id": 258},
    ),
    "gpt_bigcode": ("GPTBigCode", GPT),
    "gpt_bigcode-mha": ("GPTBigCode", {**GPT, "multi_query": False}),
    "bloom": (
        "Bloom",
        {"vocab_size": 259, "hidden_size": 60, "n_layer": 3, "n_head": 6, "bos_token_id": 257, "eos_token_id": 258},
    ),
    "mpt": (
        "Mpt",
        {"vocab_size": 259, "d_model": 60, "n_layers": 2, "n_heads": 6, "max_seq_len": 256}
        | {"bos_token_id": 257, "eos_token_id": 258},
    ),
    "falcon": ("Falcon", FALCON),
    "falcon-new": ("Falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-alibi": ("Falcon", {**FALCON, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "mixtral": ("Mixtral", {**TINY, **MOE, "sliding_window": 7}),
    "qwen2_moe": ("Qwen2Moe", {**TINY, **MOE, "mlp_only_layers": [1]}),
    "qwen3_moe": ("Qwen3Moe", {**TINY, **MOE, "head_dim": 16, "norm_topk_prob": True}),
    "olmoe": ("Olmoe", {**TINY, **MOE, "clip_qkv": 0.8}),
    "flex_olmo": ("FlexOlmo", {**TINY, **MOE}),
    "granitemoe": ("GraniteMoe", {**TINY, **MOE, **SCALED}),
    "granitemoeshared": ("GraniteMoeShared", {**TINY, **MOE, **SCALED, "shared_intermediate_size": 40}),
    "granite4-moe": (
        "GraniteMoeHybrid",
        {**TINY, **MOE, **SCALED, "shared_intermediate_size": 40, "layer_types": ["attention"] * 3, "mamba_n_heads": 2}
        | {"position_embedding_type": "rope"},
    ),
    "phimoe": ("Phimoe", {**TINY, **MOE, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True}),
    "mimo_v2_flash": ("MiMoV2Flash", MIMO_V2),
    "step3p7": ("Step3p7", {"text_config": STEP, "vision_config": STEP_EYES}),
    "glm4_moe": ("Glm4Moe", {**TINY, **MOE, **GROUPED, "head_dim": 16, "use_qk_norm": True}),
    "ernie4_5_moe": ("Ernie4_5_Moe", {**TINY, **MOE, "moe_num_experts": 8, "moe_k": 3}),
    "hunyuan_v1_moe": ("HunYuanMoEV1", {**TINY, **MOE, "head_dim": 16, "moe_topk": 3}),
    "dots1": ("Dots1", {**TINY, **MOE, **GROUPED, "head_dim": 16}),
    "exaone_moe": ("ExaoneMoe", {**TINY, **MOE, **WINDOWS, **GROUPED, "head_dim": 16}),
    "mellum": ("Mellum", {**TINY, **MOE, **WINDOWS, "head_dim": 16}),
    "solar_open": ("SolarOpen", {**TINY, **MOE, **GROUPED, "head_dim": 16}),
    "hy_v3": ("HYV3", {**TINY, **MOE, "head_dim": 16, "router_scaling_factor": 1.7}),
    "cohere2_moe": (
        "Cohere2Moe",
        {**TINY, **MOE, **WINDOWS, "head_dim": 16, "logit_scale": 0.5, "num_shared_experts": 2}
        | {"expert_selection_fn": "sigmoid", "prefix_dense_intermediate_size": 40}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    "cohere2_moe-summed": (
        "Cohere2Moe",
        {**TINY, **MOE, "head_dim": 16, "num_shared_experts": 1, "shared_expert_combination_strategy": "sum"}
        | {"rms_norm_eps": 1e-2, "sliding_window_pattern": 2},
    ),
    "minimax_m2": ("MiniMaxM2", {**TINY, **MOE, "head_dim": 16, "rotary_dim": 8}),
    "deepseek_v2": ("DeepseekV2", {**TINY, **MOE, **GROUPED, **LATENT, "topk_method": "group_limited_greedy"}),
    "deepseek_v2-lite": ("DeepseekV2", {**TINY, **MOE, **LATENT, "q_lora_rank": None}),
    "deepseek_v3": (
        "DeepseekV3",
        {**TINY, **MOE, **GROUPED, **LATENT, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}},
    ),
    "deepseek_v32": (
        "DeepseekV32",
        {**TINY, **MOE, **GROUPED, **LATENT, **INDEXED, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    "glm_moe_dsa": (
        "GlmMoeDsa",
        {**TINY, **MOE, **GROUPED, **LATENT, **INDEXED, "indexer_types": ["full", "shared", "full"]},
    ),
    "deepseek_v4": ("DeepseekV4", DEEPSEEK_V4),
    "kimi_linear": (
        "KimiLinear",
        {**TINY, **MOE, **LATENT, **KDA, "q_lora_rank": None, "num_expert_group": 1, "topk_group": 1}
        | {"num_experts_per_token": 3, "model_max_length": 256},
    ),
    "longcat_flash": ("LongcatFlash", {**TINY, **MOE, **LATENT, **LONGCAT}),
    "hy_v4": ("HYV4", {**TINY, **MOE, **LATENT, **HY_V4}),
    "glm5_next": ("Glm5Next", {"text_config": GLM5_NEXT, "vision_config": GLM5_EYES}),
    "bailing_hybrid": ("BailingHybrid", LING),
    "bailing_hybrid-biased": ("BailingHybrid", {**LING, "attention_bias": True}),
    "glm4_moe_lite": (
        "Glm4MoeLite",
        {**TINY, **MOE, **GROUPED, **LATENT, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    "mistral4": (
        "Mistral4",
        {**TINY, **MOE, **GROUPED, **LATENT}
        | {"rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}},
    ),
    "youtu": ("Youtu", {**TINY, **LATENT}),
    "minicpm3": ("MiniCPM3", {**TINY, **LATENT, "dim_model_base": 32}),
    "dbrx": ("Dbrx", DBRX),
    "dbrx-unnormalised": ("Dbrx", DBRX | {"ffn_config": DBRX["ffn_config"] | {"moe_normalize_expert_weights": None}}),
    "gpt_oss": ("GptOss", {**TINY, **MOE, **WINDOWS, "head_dim": 16, "swiglu_limit": 0.9}),
    "llama4": ("Llama4Text", LLAMA4),
    "llama4-seeing": (
        "Llama4",
        {"text_config": LLAMA4}
        | {
            "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
            | {"intermediate_size": 128, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
        },
    ),
    "afmoe": ("Afmoe", {**TINY, **MOE, **WINDOWS, "head_dim": 16, "mup_enabled": True, "route_scale": 1.7}),
    "lfm2": ("Lfm2", {**TINY, "layer_types": CONVOLUTIONS, "conv_bias": True, "block_multiple_of": 8}),
    "lfm2-long": (
        "Lfm2",
        {**TINY, "layer_types": CONVOLUTIONS, "conv_L_cache": 5, "block_auto_adjust_ff_dim": False},
    ),
    "lfm3": (
        "Lfm3",
        {**TINY, "head_dim": 16, "sliding_window": 7, "conv_bias": True}
        | {"layer_types": ["conv", "sliding_attention", "full_attention"]},
    ),
    "lfm3-plain": ("Lfm3", {**TINY, "head_dim": 16, "use_sandwich_norm": False, "use_attention_gate": False}),
    "lfm2_moe": ("Lfm2Moe", {**TINY, **MOE, "layer_types": CONVOLUTIONS, "num_dense_layers": 1}),
    "bamba": ("Bamba", {**TINY, **MAMBA, "attn_layer_indices": [1], "time_step_limit": [0.2, 0.9]}),
    "granitemoehybrid-h": (
        "GraniteMoeHybrid",
        {**TINY, **MAMBA, **SCALED, "layer_types": RECURRENT, "num_local_experts": 0, "shared_intermediate_size": 72},
    ),
    "granitemoehybrid-h-experts": (
        "GraniteMoeHybrid",
        {**TINY, **MAMBA, **SCALED, **MOE, "layer_types": RECURRENT, "mamba_proj_bias": True}
        | {"shared_intermediate_size": 40, "position_embedding_type": "rope"},
    ),
    "nemotron_h": (
        "NemotronH",
        {**NEMOTRON, "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "moe"]},
    ),
    "mamba2": (
        "Mamba2",
        {key: value for key, value in TINY.items() if "intermediate" not in key and "attention" not in key}
        | {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 12},
    ),
    "mamba": ("Mamba", {**MAMBA1, "time_step_rank": 6}),
    "mamba-biased": ("Mamba", {**MAMBA1, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "expand": 1}),
    "falcon_mamba": ("FalconMamba", {**MAMBA1, "mixer_rms_eps": 1e-2}),
    "jamba": (
        "Jamba",
        {**TINY, "num_hidden_layers": 4, "num_experts": 4, "mamba_d_state": 6, "mamba_dt_rank": 5}
        | {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    ),
    "jamba-dense": ("Jamba", {**TINY, "num_experts": 1, "attn_layer_period": 2, "attn_layer_offset": 1}),
    "falcon_h1": ("FalconH1", FALCON_H1),
    "falcon_h1-normed": ("FalconH1", {**FALCON_H1, "mamba_rms_norm": True}),
    "falcon_h1-normed-after": (
        "FalconH1",
        {**FALCON_H1, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "qwen3_next": ("Qwen3Next", {**DELTA, **MOE, "mlp_only_layers": [0]}),
    "qwen3_5_text": ("Qwen3_5Text", DELTA),
    "qwen3_5_moe_text": ("Qwen3_5MoeText", {**DELTA, **MOE}),
}
