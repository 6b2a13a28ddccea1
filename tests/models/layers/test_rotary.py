"""Rotary frequencies equal transformers'."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from headstart.models.config import RopeConfig
from headstart.models.families import config_from_hf
from headstart.models.layers.rotary import Rotation
from headstart.models.rope_frequencies import amplitude, inverse_frequencies

SCALINGS = [
    None,
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
]
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
YARNS = [
    YARN,
    YARN | {"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
    YARN | {"beta_fast": 24.0, "beta_slow": 3.0, "truncate": False, "attention_factor": 1.25},
    YARN | {"original_max_position_embeddings": 16},  # no pair turns often enough
]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_frequencies(scaling: dict[str, float | int | str] | None) -> None:
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={**(scaling or {"rope_type": "default"}), "rope_theta": 500_000.0},
    )
    expected = LlamaRotaryEmbedding(config).inv_freq
    torch.testing.assert_close(inverse_frequencies(RopeConfig(5e5, 64, scaling)), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("yarn", YARNS)
def test_yarn(yarn: dict[str, float | int | str]) -> None:
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={**yarn, "rope_theta": 500_000.0},
    )
    reference = LlamaRotaryEmbedding(config)
    (rope,) = config_from_hf(config.to_dict() | {"model_type": "llama"}).ropes
    torch.testing.assert_close(inverse_frequencies(rope), reference.inv_freq, rtol=1e-6, atol=0)
    assert amplitude(rope) == pytest.approx(reference.attention_scaling)


def test_a_table_of_factors_divides() -> None:
    """GGUF's form of llama3 scaling, made from the scaled frequencies themselves."""
    plain, scaled = (inverse_frequencies(RopeConfig(5e5, 64, scaling)) for scaling in (None, SCALINGS[2]))
    torch.testing.assert_close(inverse_frequencies(RopeConfig(5e5, 64), plain / scaled), scaled, rtol=1e-6, atol=0)


def test_dimensions_beyond_the_rotated_ones_stay() -> None:
    heads = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0))
    before = heads.clone()
    positions = torch.arange(5)
    Rotation(positions, inverse_frequencies(RopeConfig(1e4, 4)), torch.float32).apply_(heads)
    assert torch.equal(heads[..., 4:], before[..., 4:])
    assert torch.equal(heads[0], before[0])
    torch.testing.assert_close(heads[..., :4].norm(dim=-1), before[..., :4].norm(dim=-1))
    assert not torch.allclose(heads[1:, :, :4], before[1:, :, :4])
