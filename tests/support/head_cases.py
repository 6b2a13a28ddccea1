"""Hand-made files of draft heads for a small target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from headstart.models.config import LayerConfig, ModelConfig, RopeConfig

VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP = 16, 16, 4, 2, 4, 24
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM

TARGET = ModelConfig(
    family="llama",
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    mlp_size=MLP,
    max_positions=128,
    layers=(LayerConfig(),) * 8,
    ropes=(RopeConfig(10000.0, HEAD_DIM),),
)

EAGLE1: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
}
EAGLE3: dict[str, Any] = EAGLE1 | {
    "architectures": ["LlamaForCausalLMEagle3"],
    "draft_vocab_size": 8,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 5], "use_aux_hidden_state": True},
}


def matrices(layer: str, width: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = {
        "self_attn.q_proj": (Q, width),
        "self_attn.k_proj": (KV, width),
        "self_attn.v_proj": (KV, width),
        "self_attn.o_proj": (HIDDEN, Q),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    }
    return {f"{layer}{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def eagle1_tensors(bias: bool = True) -> dict[str, torch.Tensor]:
    tensors = matrices("layers.0.", HIDDEN) | {
        "embed_tokens.weight": torch.randn(VOCAB, HIDDEN),
        "fc.weight": torch.randn(HIDDEN, 2 * HIDDEN),
        "layers.0.post_attention_layernorm.weight": torch.rand(HIDDEN),
    }
    return tensors | ({"fc.bias": torch.randn(HIDDEN)} if bias else {})


def eagle3_tensors(draft_vocab: int = 8) -> dict[str, torch.Tensor]:
    """Draft id j is target id 2j."""
    said = torch.zeros(VOCAB, dtype=torch.bool)
    said[0 : 2 * draft_vocab : 2] = True
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    return matrices("midlayer.", 2 * HIDDEN) | {
        **{f"midlayer.{name}.weight": torch.rand(HIDDEN) for name in norms},
        "fc.weight": torch.randn(HIDDEN, 3 * HIDDEN),
        "norm.weight": torch.rand(HIDDEN),
        "lm_head.weight": torch.randn(draft_vocab, HIDDEN),
        "d2t": torch.arange(draft_vocab),
        "t2d": said,
    }


def write(
    directory: Path, description: dict[str, Any], tensors: dict[str, torch.Tensor], file: str = "model.safetensors"
) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(description), encoding="utf-8")
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        torch.save(tensors, directory / file)
    return directory
