"""MiMo-V2 and Step 3.5: descriptions as they were released, what is refused of them, and what their files may have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_models import write_gguf
from test_gguf_families import logits_of
from tiny_models import make_model, reference_logits

from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import LayerConfig, RopeConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families import config_from_gguf, config_from_hf
from headstart.models.weight_loading import config_of

KINDS = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
STEP: dict[str, Any] = {
    "model_type": "step3p5",
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_hidden_layers": 5,
    "max_position_embeddings": 262144,
    "vocab_size": 128896,
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "head_dim": 128,
    "moe_layers_enum": "3,4",
    "moe_num_experts": 288,
    "moe_top_k": 8,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "norm_expert_weight": True,
    "moe_router_activation": "sigmoid",
    "moe_router_scaling_factor": 3.0,
    "use_moe_router_bias": True,
    "use_head_wise_attn_gate": True,
    "sink": False,
    "sliding_window": 512,
    "num_nextn_predict_layers": 2,
    "layer_types": [*KINDS, "full_attention", "sliding_attention", "full_attention"],
    "rope_theta": [5e6, 1e4, 1e4, 1e4, 5e6, 1e4, 5e6],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5, 1.0, 0.5],
    "rope_scaling": {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 131072}
    | {"low_freq_factor": 1.0, "high_freq_factor": 32.0},
    "yarn_only_types": ["full_attention"],
    "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_heads": 96, "head_dim": 128}
    | {"num_attention_groups": 8},
    "swiglu_limits": [0.0, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0],
    "swiglu_limits_shared": [0.0, 0.0, None, 16.0, 16.0, 0.0, 0.0],
}
MIMO: dict[str, Any] = {
    "model_type": "mimo_v2_flash",
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 6,
    "max_position_embeddings": 262144,
    "vocab_size": 152576,
    "num_attention_heads": 64,
    "swa_num_attention_heads": 64,
    "num_key_value_heads": 4,
    "swa_num_key_value_heads": 8,
    "head_dim": 192,
    "swa_head_dim": 192,
    "v_head_dim": 128,
    "swa_v_head_dim": 128,
    "layernorm_epsilon": 1e-5,
    "hybrid_layer_pattern": [0, 1, 1, 1, 1, 0],
    "moe_layer_freq": [0, 1, 1, 1, 1, 1],
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "attention_value_scale": 0.707,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5_000_000,
    "swa_rope_theta": 10_000,
    "sliding_window": 128,
    "sliding_window_size": 128,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
}


def test_step_as_it_was_released() -> None:
    config = config_from_hf(STEP)
    full, sliding = LayerConfig(), LayerConfig(512, rope=1, num_heads=96, num_kv_heads=8)
    assert [config.heads_of(layer) for layer in config.layers] == [64, 96, 96, 96, 64]
    assert [layer.window for layer in config.layers] == [None, 512, 512, 512, None]
    assert [layer.mlp_limit for layer in config.layers] == [None, None, None, 16.0, 16.0]
    assert [layer.expert_limit for layer in config.layers] == [None, None, None, None, 7.0]
    assert [layer.channel for layer in config.layers] == ["mlp", "mlp", "mlp", "experts", "experts"]
    assert config.module_layers == (sliding, full)
    assert config.num_kv_heads == 8
    turned, plain = config.ropes
    assert (turned.theta, turned.dim, turned.scaling is not None) == (5e6, 64, True)
    assert plain == RopeConfig(1e4, 128)
    assert config.norms.offset == 1.0
    assert config.experts == ExpertsConfig(
        288, 8, 1280, shared_size=1280, score="sigmoid", correction=True, normalised=True, scale=3.0
    )


def test_mimo_as_it_was_released() -> None:
    config = config_from_hf(MIMO)
    assert [layer.window for layer in config.layers] == [None, 129, 129, 129, 129, None]
    assert [layer.sinks for layer in config.layers] == [False, True, True, True, True, False]
    assert [config.kv_heads_of(layer) for layer in config.layers] == [4, 8, 8, 8, 8, 4]
    assert [layer.channel for layer in config.layers] == ["mlp", *["experts"] * 5]
    assert (config.attention.value_dim, config.attention.value_scale) == (128, 0.707)
    assert config.ropes == (RopeConfig(5e6, 64), RopeConfig(1e4, 64))
    assert (config.norms.eps, config.num_heads, config.head_dim) == (1e-5, 64, 192)
    assert config.experts is not None
    assert config.experts.shared_size == 0


@pytest.mark.parametrize(
    ("description", "changes", "said"),
    [
        (STEP, {"swiglu_limits": [-1.0] * 7}, "swiglu_limits"),
        (STEP, {"swiglu_limits_shared": [1.0]}, "swiglu_limits_shared"),
        (STEP, {"layer_types": ["chunked_attention"] * 7}, "layer_types"),
        (STEP, {"layer_types": [*KINDS, "full_attention", "none"]}, "layer_types"),
        (STEP, {"sliding_window": None}, "no entry 'sliding_window'"),
        (STEP, {"moe_layers_enum": "3,four"}, "moe_layers_enum"),
        (STEP, {"sink": True}, "sink"),
        (STEP, {"rope_theta": [5e6]}, "rope_theta"),
        (STEP, {"num_sliding_attention_heads": 92}, "92 heads, which 8 key-value heads do not divide"),
        (MIMO, {"swa_head_dim": 128}, "swa_head_dim"),
        (MIMO, {"v_head_dim": 256, "swa_v_head_dim": 256}, "values of size 256, wider than keys of size 192"),
        (MIMO, {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern"),
        (MIMO, {"n_shared_experts": 1}, "n_shared_experts"),
    ],
)
def test_what_no_such_model_has_is_refused_by_name(
    description: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        config_from_hf(description | changes)


def test_a_file_says_numbers_of_heads_by_layer(tmp_path: Path) -> None:
    file = open_checkpoint(write_gguf(make_model("step3p7"), tmp_path / "tiny.gguf"))
    heads = "step35.attention.head_count"
    for wrong in ([6, 4], [6, 4, 5], [6, 4, "x"], [6, 4, 0]):
        with pytest.raises(CheckpointError, match=r"step35\.attention\.head_count"):
            config_from_gguf({**file.metadata, heads: wrong}, file.shapes())


def test_a_file_may_bring_factors_of_the_rotation_of_layers_that_see_everything(tmp_path: Path) -> None:
    """It has one for each pair of a head; half of them turn there."""
    model = make_model("step3p7")
    factors = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    read = config_of(open_checkpoint(write_gguf(model, tmp_path / "tiny.gguf", factors)))
    assert read.ropes[0].factors == (1.0, 2.0, 3.0, 4.0)
    assert read.ropes[1].factors == ()
    assert config_of(open_checkpoint(write_gguf(model, tmp_path / "plain.gguf"))).ropes[0].factors == ()


@pytest.mark.parametrize("family", ["mimo_v2_flash", "step3p7"])
def test_queries_keys_and_values_may_be_one_tensor(family: str, tmp_path: Path) -> None:
    model = make_model(family)
    path = fused(write_gguf(model, tmp_path / "tiny.gguf"), tmp_path / "fused.gguf")
    tokens = [3 + (7 * i) % 90 for i in range(20)]
    assert (logits_of(path, tokens) - reference_logits(model, tokens)).abs().max().item() <= 1e-4


def fused(path: Path, to: Path) -> Path:
    """The same file with one tensor for queries, keys and values, as the converter can write it."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            kind = field.types[0]
            writer.add_key_value(name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    tensors = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}
    for name in [name for name in tensors if "attn_q.weight" in name]:
        parts = [tensors.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        tensors[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to
