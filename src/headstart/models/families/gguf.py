"""GGUF metadata read as the ``config.json`` that they were made of, so that a family has one reader for both.

Names are those of gguf-py's constants; what llama.cpp keeps as constants stands beside each family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from headstart.models.config import ModelConfig
from headstart.models.families.base import CURVE, Gguf, TensorLayout, without
from headstart.models.families.fields import MAX_POSITIONS, Fields

NAMES: Mapping[str, str] = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "sliding_window_pattern": "attention.sliding_window_pattern",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    **dict.fromkeys(
        ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"), "attention.layer_norm_epsilon"
    ),
    "clip_qkv": "attention.clamp_kqv",
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), "expert_count"),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), "expert_used_count"),
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "num_shared_experts": "expert_shared_count",
    "norm_topk_prob": "expert_weights_norm",
    "routed_scaling_factor": "expert_weights_scale",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    **dict.fromkeys(
        ("mamba_n_heads", "mamba_num_heads", "num_heads", "mamba_dt_rank", "linear_num_value_heads"),
        "ssm.time_step_rank",
    ),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "linear_num_key_heads"), "ssm.group_count"),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size", "linear_key_head_dim"), "ssm.state_size"),
    **dict.fromkeys(("mamba_d_conv", "conv_kernel", "linear_conv_kernel_dim"), "ssm.conv_kernel"),
    "time_step_rank": "ssm.time_step_rank",
    "mamba_d_ssm": "ssm.inner_size",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
}
"""Entry of a ``config.json`` -> metadata, behind the architecture's name. All others are called alike, if they are
there at all."""
GGUF_LAYER = {
    "attention_norm": "blk.{i}.attn_norm",
    "q": "blk.{i}.attn_q",
    "k": "blk.{i}.attn_k",
    "v": "blk.{i}.attn_v",
    "output": "blk.{i}.attn_output",
    "q_norm": "blk.{i}.attn_q_norm",
    "k_norm": "blk.{i}.attn_k_norm",
    "sinks": "blk.{i}.attn_sinks",
    "attention_gate": "blk.{i}.attn_gate",
    "attention_post_norm": "blk.{i}.post_attention_norm",
    "mlp_norm": "blk.{i}.ffn_norm",
    **{part: f"blk.{{i}}.ffn_{part}" for part in ("gate", "up", "down")},
    "mlp_post_norm": "blk.{i}.post_ffw_norm",
    **{f"curve_{role}": f"blk.{{i}}.xielu.{name}" for role, name in CURVE.items()},
    "router": "blk.{i}.ffn_gate_inp",
    "router_correction": "blk.{i}.exp_probs_b.bias",
    **{f"expert_{part}": f"blk.{{i}}.ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"expert_{part}_bias": f"blk.{{i}}.ffn_{part}_exps.bias" for part in ("gate", "up", "down")},
    **{f"shared_{part}": f"blk.{{i}}.ffn_{part}_shexp" for part in ("gate", "up", "down")},
    "shared_scale": "blk.{i}.ffn_gate_inp_shexp",
    "convolution_kernel": "blk.{i}.ssm_conv1d",
    "step_bias": "blk.{i}.ssm_dt.bias",
    "log_decay": "blk.{i}.ssm_a",
    "state_norm": "blk.{i}.ssm_norm",
    "skip": "blk.{i}.ssm_d",
    "mamba_input": "blk.{i}.ssm_in",
    "mamba_selection": "blk.{i}.ssm_x",
    "mamba_step": "blk.{i}.ssm_dt",
    "step_norm": "blk.{i}.ssm_dt_norm",
    "where_to_norm": "blk.{i}.ssm_b_norm",
    "from_where_norm": "blk.{i}.ssm_c_norm",
    "mamba_output": "blk.{i}.ssm_out",
    "input_gate": "blk.{i}.inp_gate",
    "input_output": "blk.{i}.proj",
    "input_norm": "blk.{i}.post_norm",
    "layer_scale": "blk.{i}.layer_output_scale",
    "side_down": "blk.{i}.laurel_l",
    "side_up": "blk.{i}.laurel_r",
    "side_norm": "blk.{i}.laurel_post_norm",
    "stream_router": "blk.{i}.altup_router",
    "stream_norm": "blk.{i}.altup_router_norm",
    "stream_predict": "blk.{i}.altup_predict_coef",
    "stream_correct": "blk.{i}.altup_correct_coef",
    "stream_scale": "blk.{i}.altup_correct_scale",
}
"""One name for a role in all families, but for a few that stand beside theirs."""


def _logarithm(decay: Tensor, _: ModelConfig) -> Tensor:
    """Decays are stored as they are, below 0."""
    return (-decay).log()


def minus_one(weight: Tensor, _: ModelConfig) -> Tensor:
    """Norms that add 1 to their weights are stored with it added."""
    return weight - 1


STATES = {"log_decay": _logarithm}
"""What is done to values of states."""
GGUF_LAYOUT = TensorLayout(
    embedding="token_embd",
    embedding_norm="token_embd_norm",
    positions="position_embd",
    final_norm="output_norm",
    head="output",
    layer=GGUF_LAYER,
    inputs_table="per_layer_token_embd",
    inputs_projection="per_layer_model_proj",
    inputs_norm="per_layer_proj_norm",
    stream_spread="altup_proj",
    stream_merge="altup_unembd_proj",
    rope_factors="rope_freqs.weight",
    # One-channel kernels are matrices.
    flat=frozenset({"shared_scale", "convolution_kernel"}),
    convert=STATES,
    ignored=(r"blk\.\d+\.attn_rot_embd\.weight",),
)
GGUF_MIXED = replace(GGUF_LAYOUT, beyond=True)
GGUF_NORMED_AFTER = replace(GGUF_MIXED, layer=GGUF_LAYER | {"mlp_norm": "blk.{i}.post_attention_norm"})
"""Where the norm before the experts is named for what it follows."""
GGUF_JOINT_QKV = replace(GGUF_LAYOUT, layer=without(GGUF_LAYER, "q", "k", "v") | {"qkv": "blk.{i}.attn_qkv"})


def _heads_by_one(config: ModelConfig) -> tuple[int, ...]:
    assert config.mamba2 is not None
    return config.mamba2.heads, 1


def _groups(config: ModelConfig) -> tuple[int, ...]:
    assert config.mamba2 is not None
    return config.mamba2.groups, config.mamba2.inner // config.mamba2.groups


GGUF_MAMBA2 = replace(GGUF_MIXED, folded={"log_decay": _heads_by_one, "skip": _heads_by_one, "state_norm": _groups})
_SIGMOID = 2
"""``expert_gating_func`` of sigmoid."""
_NO_BIASES = {"attention_bias": False, "mlp_bias": False}
"""Tensors tell (``config_from_gguf``)."""


def described(metadata: Fields, gguf: Gguf) -> Fields:
    """``metadata`` by the names of a family's ``config.json``."""
    return as_config_json(metadata, gguf.names, gguf.defaults, gguf.computed)


def as_config_json(
    metadata: Fields,
    names: Mapping[str, str],
    defaults: Mapping[str, Any] | None = None,
    computed: Callable[[Fields], Mapping[str, Any]] | None = None,
) -> Fields:
    """The same by parts of a ``Gguf``."""
    fields = Fields(metadata.entries, metadata.source, metadata.prefix, {**NAMES, **names})
    fields = fields.with_defaults({**_NO_BIASES, **(defaults or {})})
    fields = _without_guessing_layers(fields)
    fields = fields.with_entries(vocab_size=_vocab_size(fields), **_token_ids(fields))
    fields = fields.with_entries(**(computed(fields) if computed is not None else {}))
    heads = fields.integer("num_attention_heads", 1, minimum=0) or 1
    return _with_windows(fields.with_defaults({"head_dim": fields.integer("hidden_size") // heads or None}))


def _without_guessing_layers(fields: Fields) -> Fields:
    """Layers that guess further tokens are counted among the others."""
    key = "nextn_predict_layers"
    guessing, count = fields.integer(key, 0, minimum=0), fields.integer("num_hidden_layers", maximum=4096)
    if guessing >= count:
        raise fields.bad(key, guessing, "less than block_count")
    return fields.with_entries(num_hidden_layers=count - guessing)


def _vocab_size(fields: Fields) -> int:
    """The entry ``vocab_size`` where there is one, else the number of the tokenizer's tokens.

    Raises:
        CheckpointError: there is neither.
    """
    size = fields.optional_integer("vocab_size")
    if size is not None:
        return size
    tokens = fields.entries.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise fields.missing("vocab_size")
    return len(tokens)


def _token_ids(fields: Fields) -> dict[str, Any]:
    """The end of a turn ends a sequence too, as in llama.cpp."""
    tokenizer = Fields(fields.entries, fields.source, "tokenizer.ggml.")
    ends = (tokenizer.optional_integer(key, minimum=0) for key in ("eos_token_id", "eot_token_id"))
    return {
        "bos_token_id": tokenizer.optional_integer("bos_token_id", minimum=0),
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)),
    }


def _with_windows(fields: Fields) -> Fields:
    """``sliding_window``, null for 0, and ``layer_types`` where the metadata say which layers have one: by an entry for
    each, or all but each so many-th (0: none has)."""
    window = fields.integer("sliding_window", 0, minimum=0, maximum=MAX_POSITIONS)
    key, count = "sliding_window_pattern", fields.integer("num_hidden_layers", maximum=4096)
    pattern = fields.get(key)
    fields = fields.with_entries(sliding_window=window or None)
    if pattern is None or not window:
        return fields.with_entries(sliding_window_pattern=None)
    if isinstance(pattern, list):
        if len(pattern) < count or not all(each in (0, 1) for each in pattern):
            raise fields.bad(key, pattern, f"{count} entries, each true or false")
        slides = [bool(each) for each in pattern[:count]]
    else:
        period = fields.integer(key, minimum=0)
        slides = [period > 0 and (index + 1) % period != 0 for index in range(count)]
    kinds = ["sliding_attention" if each else "full_attention" for each in slides]
    return fields.with_entries(sliding_window_pattern=None, layer_types=kinds)


def chosen_by_sigmoid(fields: Fields) -> dict[str, Any]:
    """No entries; refuses experts that are chosen otherwise."""
    if fields.integer("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise fields.unsupported("expert_gating_func", fields.get("expert_gating_func"), f"{_SIGMOID}, sigmoid")
    return {}


def size_of_state_heads(fields: Fields) -> int:
    """Of which all make up a mixer's inner size."""
    heads, inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
    if inner % heads:
        raise fields.bad("ssm.time_step_rank", heads, f"a divisor of {inner}")
    return inner // heads


def by_sight(fields: Fields, key: str) -> tuple[int, int]:
    """The number that an entry has in layers that see everything, and the one in those with windows."""
    values, slides = fields.get(key), fields.get("sliding_window_pattern")
    if not isinstance(values, list):
        return (fields.integer(key),) * 2
    count = fields.integer("num_hidden_layers", maximum=4096)
    numbers = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)
    if not numbers or not isinstance(slides, list) or min(len(values), len(slides)) < count:
        raise fields.bad(key, values, f"a whole number, or {count} of them beside as many kinds of layers")
    full, sliding = (
        {value for value, slide in zip(values, slides, strict=False) if bool(slide) == kind} for kind in (False, True)
    )
    if len(full) > 1 or len(sliding) > 1:
        raise fields.unsupported(key, values, "one number in layers with windows, and one in the others")
    return next(iter(full or sliding)), next(iter(sliding or full))


def by_layer(fields: Fields, key: str) -> tuple[dict[str, int], list[bool]]:
    """The one number that an entry has in layers where it is not 0, as an entry, and where that is."""
    values = fields.get(key)
    count = fields.integer("num_hidden_layers", maximum=4096)
    if not isinstance(values, list):
        return {}, [True] * count
    numbers = [value for value in values if isinstance(value, int)]
    some = {value for value in numbers if value}
    if len(numbers) < len(values) or len(values) < count or len(some) > 1:
        raise fields.bad(key, values, f"{count} whole numbers, all the same but for zeros")
    return {key: max(some, default=1)}, [value > 0 for value in numbers[:count]]
