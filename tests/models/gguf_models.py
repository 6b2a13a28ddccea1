"""Tiny GGUF files made from transformers' models by the rules of llama.cpp's converter (conversion/*.py there).

Tensor names come from the ``gguf`` package's own map; what the converter does to values is written here anew.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headstart.models.weights import TensorSource

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "gpt_neox": gguf.MODEL_ARCH.GPTNEOX,
    "gemma": gguf.MODEL_ARCH.GEMMA,
    "arcee": gguf.MODEL_ARCH.ARCEE,
    "seed_oss": gguf.MODEL_ARCH.SEED_OSS,
    "ernie4_5": gguf.MODEL_ARCH.ERNIE4_5,
    "hunyuan_v1_dense": gguf.MODEL_ARCH.HUNYUAN_DENSE,
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "cohere": gguf.MODEL_ARCH.COMMAND_R,
    "cohere2": gguf.MODEL_ARCH.COHERE2,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "phi": gguf.MODEL_ARCH.PHI2,
    "nemotron": gguf.MODEL_ARCH.NEMOTRON,
    "gpt_bigcode": gguf.MODEL_ARCH.STARCODER,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "granitemoeshared": gguf.MODEL_ARCH.GRANITE_MOE,
    "dots1": gguf.MODEL_ARCH.DOTS1,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "olmo": gguf.MODEL_ARCH.OLMO,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "apertus": gguf.MODEL_ARCH.APERTUS,
    "jais2": gguf.MODEL_ARCH.JAIS2,
    "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2,
    "exaone_moe": gguf.MODEL_ARCH.EXAONE_MOE,
    "afmoe": gguf.MODEL_ARCH.AFMOE,
    "ernie4_5_moe": gguf.MODEL_ARCH.ERNIE4_5_MOE,
    "hunyuan_v1_moe": gguf.MODEL_ARCH.HUNYUAN_MOE,
    "phimoe": gguf.MODEL_ARCH.PHIMOE,
    "llama4_text": gguf.MODEL_ARCH.LLAMA4,
    "mellum": gguf.MODEL_ARCH.QWEN3MOE,
    "hy_v3": gguf.MODEL_ARCH.DOTS1,
    "cohere2_moe": gguf.MODEL_ARCH.COHERE2,
    "bailing_moe": gguf.MODEL_ARCH.BAILINGMOE2,
    "mimo_v2_flash": gguf.MODEL_ARCH.MIMO2,
    "step3p5": gguf.MODEL_ARCH.STEP35,
}
_YOUNGER = {"mellum": "mellum", "hy_v3": "hy_v3", "cohere2_moe": "cohere2moe"}
"""What the ``gguf`` package has no name for yet; names of tensors are those of the architecture above."""
_GRANITES = ("granite", "granitemoe", "granitemoeshared", "granitemoehybrid")
_LLAMAS = ("llama", "mistral", "smollm3", "arcee", "mixtral", "olmo", "ministral3", *_GRANITES)
"""What the converter treats as it does Llama."""


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    rope_factors: Tensor | None = None,
    most_tensors: int = 0,
    modules: Sequence[Mapping[str, Tensor]] = (),
    towers: Mapping[str, Tensor] | None = None,
) -> Path:
    """``most_tensors``: of a part, by which the file is split; 0: it is not. ``modules``: what stands around the last
    layers, which are multi-token modules then, by llama.cpp's names. ``towers``: what reads images and sounds."""
    config = model.config
    if config.model_type == "step3p7":
        config = config.get_text_config()
        config.allow_global_per_layer_attribute_access = True
    arch = ARCHITECTURES[config.model_type]
    architecture = _YOUNGER.get(config.model_type, gguf.MODEL_ARCH_NAMES[arch])
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=most_tensors)
    _metadata(writer, config)
    for number in ("alpha_p", "alpha_n", "beta", "eps") if config.model_type == "apertus" else ():
        values = [getattr(layer.mlp.act_fn, number).float().item() for layer in model.model.layers]
        writer.add_array(f"xielu.{number}", values)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = dict(model.state_dict()) | {name: each for name, each in model.named_buffers() if "correction" in name}
    if config.model_type == "bailing_moe":
        tensors = _joined(tensors)
    tensors = {name.replace("language_model.", ""): tensor for name, tensor in tensors.items() if not _sees(name)}
    for name, tensor in _split(tensors).items():
        if ".act_fn." in name:
            continue
        if name == "lm_head.weight":
            if config.tie_word_embeddings:
                continue
            target = "output.weight"
        else:
            target = _of_experts(name, config.model_type) or names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert target is not None, name
        writer.add_tensor(target, _converted(name, tensor, config).contiguous().numpy())
    if "short_factor" in (getattr(config, "rope_parameters", None) or {}):
        for length in ("long", "short"):
            factors = torch.tensor(config.rope_parameters[f"{length}_factor"])
            writer.add_tensor(f"rope_factors_{length}.weight", factors.numpy())
    if modules:
        writer.add_uint32(f"{architecture}.nextn_predict_layers", len(modules))
    for number, parts in enumerate(modules, config.num_hidden_layers - len(modules)):
        for part, tensor in parts.items():
            moved = config.model_type in ("bailing_moe", "mimo_v2_flash") and part == "shared_head_norm"
            name = "layer_output_norm" if moved else f"nextn.{part}"
            writer.add_tensor(f"blk.{number}.{name}.weight", _converted(f"{part}.weight", tensor, config).numpy())
    for name, tensor in (towers or {}).items():
        writer.add_tensor(name, tensor.numpy())
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _sees(name: str) -> bool:
    return "vision_model" in name or "multi_modal_projector" in name


def _split(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With gate and up apart, and the names of a dense MLP in place of Granite 4's shared expert."""
    split = {}
    for name, tensor in tensors.items():
        if "experts.gate_up_proj" in name:
            # gpt-oss has them in turns; its matrices and Llama 4's are [in, out].
            in_turns = "router.bias" in " ".join(tensors)
            turned = (in_turns and tensor.dim() == 3) or "feed_forward" in name
            whole = tensor.transpose(1, 2) if turned else tensor
            halves = (whole[:, 0::2], whole[:, 1::2]) if in_turns else whole.chunk(2, dim=1)
            for part, half in zip(("gate", "up"), halves, strict=True):
                split[name.replace("gate_up", part)] = half
        elif "experts.down_proj" in name and ("router.bias" in " ".join(tensors) or "feed_forward" in name):
            split[name] = tensor.transpose(1, 2) if tensor.dim() == 3 else tensor
        elif "shared_mlp.input_linear" in name and any("experts" in each for each in tensors):
            for part, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
                split[name.replace("shared_mlp.input_linear", f"shared_{part}")] = half
        elif "shared_mlp.input_linear" in name:
            for part, half in zip(("gate", "up"), tensor.chunk(2), strict=True):
                split[name.replace("shared_mlp.input_linear", f"mlp.{part}_proj")] = half
        else:
            down = "shared_down" if any("experts" in each for each in tensors) else "mlp.down_proj"
            split[name.replace("shared_mlp.output_linear", down)] = tensor
    return split


_OF_EXPERTS = {
    r"experts\.(gate|up|down)_proj(_bias)?": r"ffn_\1_exps",
    r"(?:shared_experts?|shared_mlp)\.(gate|up|down)_proj": r"ffn_\1_shexp",
    r"shared_(gate|up|down)": r"ffn_\1_shexp",
    r"shared_expert_gate": "ffn_gate_inp_shexp",
    r"gate|router|gate\.wg|router\.gate": "ffn_gate_inp",
    r"self_attn\.sinks": "attn_sinks",
    r"self_attn\.g(?:ate)?_proj": "attn_gate",
    r"(?:gate\.)?(?:moe_statics\.)?e_score_correction_bias|expert_bias": "exp_probs_b",
}


def _joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Queries, keys and values in one tensor."""
    joined = {name: tensor for name, tensor in tensors.items() if not re.search(r"[qkv]_proj\.", name)}
    for name in tensors:
        if "q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            joined[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
    return joined


def _of_experts(name: str, kind: str) -> str | None:
    """What the converter calls a tensor of a mixture."""
    within = r"(?:mlp\.|block_sparse_moe\.|feed_forward\.)?"
    layer = re.fullmatch(rf"model\.layers\.(\d+)\.{within}(.*?)(\.weight|\.bias)?", name)
    if layer is None:
        return None
    for ours, theirs in _OF_EXPERTS.items():
        found = re.fullmatch(ours, layer[2])
        if found is not None:
            is_bias = layer[3] == ".bias" or name.endswith("_bias")
            if kind == "hy_v3" and is_bias:
                return f"blk.{layer[1]}.{found.expand(theirs)}"  # its ending is left out
            return f"blk.{layer[1]}.{found.expand(theirs)}.{'bias' if is_bias else 'weight'}"
    return None


def tensors_for(model: PreTrainedModel, source: TensorSource) -> dict[str, Tensor]:
    """The other way round, for llama: a state dict of ``model`` from a GGUF file's tensors, a tied head left out."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    tensors = {}
    for name in model.state_dict():
        if name == "lm_head.weight":
            continue
        tensor = source.read(names.get_name(name, try_suffixes=(".weight",)))
        if "q_proj" in name or "k_proj" in name:
            heads = model.config.num_attention_heads if "q_proj" in name else model.config.num_key_value_heads
            by_head = tensor.reshape(heads, -1, tensor.shape[1])
            tensor = torch.cat((by_head[:, 0::2], by_head[:, 1::2]), dim=1).reshape(tensor.shape)
        tensors[name] = tensor
    return tensors


def _metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(
        _by_sight(config, config.num_attention_heads, config.num_sliding_attention_heads)
        if config.model_type == "step3p5"
        else config.num_attention_heads
    )
    writer.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    kind = config.model_type
    if kind == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    dense = getattr(config, "prefix_dense_intermediate_size", None)
    inner = dense or getattr(
        config, "shared_intermediate_size" if kind == "granitemoehybrid" else "intermediate_size", None
    )
    writer.add_feed_forward_length(getattr(config, "intermediate_size_mlp", inner) or 4 * config.hidden_size)
    _more_metadata(writer, config)
    if kind == "gpt_neox":
        head_dim = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(config.rope_parameters["partial_rotary_factor"] * head_dim))
        writer.add_parallel_residual(config.use_parallel_residual)
        writer.add_layer_norm_eps(config.layer_norm_eps)
        return
    if kind == "granitemoehybrid":
        writer.add_head_count_kv([config.num_key_value_heads] * config.num_hidden_layers)
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
    elif kind == "mimo_v2_flash":
        writer.add_head_count_kv(_by_sight(config, config.num_key_value_heads, 2 * config.num_key_value_heads))
    elif kind != "gpt_bigcode":
        writer.add_head_count_kv(config.num_key_value_heads)
    if kind.startswith("granite"):
        if config.attention_multiplier != 6**-0.5:  # what it is where the file does not say
            writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if kind == "gpt_bigcode":
        return
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast", 32.0))
        if kind == "ministral3":
            writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
            writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind == "phi3":
        head_size = config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(rope["partial_rotary_factor"] * head_size))
        if config.sliding_window is not None:
            writer.add_sliding_window(config.sliding_window)
        if rope["rope_type"] == "longrope":
            trained = rope["original_max_position_embeddings"]
            stretched = math.log(config.max_position_embeddings / trained)
            writer.add_rope_scaling_orig_ctx_len(trained)
            writer.add_rope_scaling_attn_factors(math.sqrt(1 + stretched / math.log(trained)))
    if kind in _LLAMAS:
        writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None)
    if head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(config.v_head_dim if kind == "mimo_v2_flash" else head_dim)
    if kind in ("gemma2", "gemma3_text"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def _by_sight(config: Any, full: int, sliding: int) -> list[int]:
    return [sliding if each == "sliding_attention" else full for each in config.layer_types]


_WITH_WINDOWS = (
    "mimo_v2_flash",
    "step3p5",
    "olmo3",
    "exaone4",
    "cohere2",
    "cohere2_moe",
    "gpt_oss",
    "exaone_moe",
    "afmoe",
    "phimoe",
)
_SIZED_EXPERTS = (
    *("qwen2_moe", "qwen3_moe", "dots1", "glm4_moe", "exaone_moe", "afmoe", "ernie4_5_moe", "mellum"),
    *("bailing_moe", "hy_v3", "mimo_v2_flash", "step3p5"),
)
_SIGMOIDS = ("dots1", "glm4_moe", "exaone_moe", "afmoe", "minimax_m2", "bailing_moe", "hy_v3", "cohere2_moe")


def _more_metadata(writer: gguf.GGUFWriter, config: Any) -> None:
    """What only some kinds have."""
    kind = config.model_type
    layer_norms = ("layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
    eps = [getattr(config, name) for name in layer_norms if hasattr(config, name)]
    eps = [] if kind == "cohere2_moe" and config.rms_norm_eps is not None else eps
    if eps:
        writer.add_layer_norm_eps(eps[0])
    elif kind == "olmo":
        writer.add_layer_norm_eps(1e-5)
        if config.clip_qkv is not None:
            writer.add_clamp_kqv(config.clip_qkv)
    elif hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    share = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor")
    if share is not None and kind not in ("phi3", "gpt_neox"):
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_rope_dimension_count(int(share * head_dim))
    if kind in _WITH_WINDOWS and config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    if hasattr(config, "logit_scale"):
        writer.add_logit_scale(config.logit_scale)
    if kind == "stablelm":
        writer.add_parallel_residual(config.use_parallel_residual)
    count = getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0)
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if kind in _SIZED_EXPERTS:
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if kind == "granitemoeshared":
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    if kind in ("minimax_m2", "hunyuan_v1_moe", "llama4_text"):
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if kind == "hunyuan_v1_moe":
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
    if kind == "minimax_m2":
        writer.add_rope_dimension_count(config.rotary_dim)
    if kind == "hy_v3":
        writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * config.num_shared_experts)
        writer.add_expert_weights_scale(config.router_scaling_factor)
    if kind == "cohere2_moe":
        writer.add_leading_dense_block_count(config.mlp_layer_types.count("dense"))
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config.layer_types])
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if kind == "bailing_moe":
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
        writer.add_rope_dimension_count(config.head_dim // 2)
    if kind in ("dots1", "glm4_moe", "exaone_moe", "bailing_moe"):
        shared = config.num_shared_experts if kind == "exaone_moe" else config.n_shared_experts
        writer.add_expert_shared_count(shared)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if kind in ("dots1", "glm4_moe", "bailing_moe"):
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
    if kind == "mellum":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config.layer_types])
        writer.add_float32("mellum.rope.freq_base_swa", config.rope_parameters["sliding_attention"]["rope_theta"])
    if kind in ("mimo_v2_flash", "step3p5"):
        ropes = config.rope_parameters
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config.layer_types])
        writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    if kind == "mimo_v2_flash":
        writer.add_rope_dimension_count(int(config.head_dim * ropes["full_attention"]["partial_rotary_factor"]))
        writer.add_float32("mimo2.attention.value_scale", config.attention_value_scale)
    if kind == "step3p5":
        writer.add_expert_shared_feed_forward_length(config.share_expert_dim)
        writer.add_expert_weights_scale(config.moe_router_scaling_factor)
        writer.add_expert_weights_norm(True)
        writer.add_swiglu_clamp_exp([each or 0.0 for each in config.swiglu_limits])
        writer.add_swiglu_clamp_shexp([each or 0.0 for each in config.swiglu_limits_shared])
    if kind == "exaone_moe":
        writer.add_leading_dense_block_count([*config.mlp_layer_types, "sparse"].index("sparse"))
        writer.add_sliding_window_pattern([each == "sliding_attention" for each in config.layer_types])
        writer.add_expert_shared_feed_forward_length(config.moe_intermediate_size * shared)
    if kind == "afmoe":
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_weights_scale(config.route_scale)
        writer.add_expert_weights_norm(True)
    if kind == "ernie4_5_moe":
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.moe_num_shared_experts * config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
    if kind == "llama4_text":
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    if kind in _SIGMOIDS:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _converted(name: str, tensor: Tensor, config: Any) -> Tensor:
    kind = config.model_type
    if kind in _LLAMAS and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = tensor.reshape(heads, 2, -1, *tensor.shape[1:])
        return torch.stack((halves[:, 0], halves[:, 1]), dim=2).reshape(tensor.shape)
    if kind.startswith(("gemma", "nemotron", "step3")) and name.endswith("norm.weight"):
        return tensor + 1
    if "shared_expert_gate" in name or "moe_statics" in name:
        return tensor[0]
    if kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        return tensor.T
    if kind == "gpt_neox" and "query_key_value" in name:
        by_head = tensor.reshape(config.num_attention_heads, 3, -1, *tensor.shape[1:])
        return torch.cat([by_head[:, i].flatten(0, 1) for i in range(3)])
    return tensor
