"""Buckets of distances and tables of sines, against those of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention

from headstart.models.encoder_decoder import RelativeBias
from headstart.models.layers.positions import distance_buckets, sinusoids


@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20), (64, 1000), (6, 50)])
@pytest.mark.parametrize("both_sides", [True, False])
def test_buckets_are_t5s(buckets: int, longest: int, both_sides: bool) -> None:
    distances = torch.arange(-3000, 3000)
    expected = T5Attention._relative_position_bucket(
        -distances, bidirectional=both_sides, num_buckets=buckets, max_distance=longest
    )
    assert torch.equal(distance_buckets(distances, RelativeBias(buckets, longest), both_sides), expected)


@pytest.mark.parametrize("size", [36, 64])
def test_sines_are_those_of_marian_and_m2m100(size: int) -> None:
    marian = MarianSinusoidalPositionalEmbedding(300, size)
    assert torch.equal(sinusoids("sinusoid", 300, size), marian.create_weight())
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(300, size)
    assert torch.equal(sinusoids("tensor2tensor", 300, size), expected)
