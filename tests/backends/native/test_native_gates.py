"""Gates and ups that a file keeps in two types, as some mixes do: each in its own blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf_blocks import random_blocks
from native_cases import (
    BLOCK,
    SHUFFLED,
    Rows,
    check_rows_of_their_own,
    each_isa,
    isa_params,
    make_pass,
    random_tokens,
    random_weights,
    run_chunks,
    small_config,
)
from native_here import needs_native
from thinning import thorough_but
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.formats import BF16, KINDS, OWN, nearest_forms
from headstart.backends.torch.backend import TorchBackend
from headstart.models.adapters import AdapterWeights
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.gguf_types import dequantised
from headstart.models.linear_weights import LinearWeights
from headstart.models.stored import FileMatrix, MatrixPart, StoredTensor
from headstart.models.weights import (
    AttentionWeights,
    ChannelWeights,
    DecoderWeights,
    ExpertsWeights,
    MixerWeights,
    MlpWeights,
)
from headstart.passes.backend import Backend


def layered(*layers: LayerConfig, **changes: object) -> ModelConfig:
    """Sizes that are whole blocks, but not what rows are padded to."""
    return small_config(mlp_size=96, layers=layers, **changes)


EXPERTS = ExpertsConfig(7, 3, 32, bias=True, clamp=0.7, shared_size=96, shared_gate=True)
CASES = {
    "dense": layered(LayerConfig(), LayerConfig(mlp_size=160, mlp_limit=0.5)),
    "cut off": layered(LayerConfig(sparsity=0.9), LayerConfig()),
    "experts": layered(LayerConfig(channel="experts"), LayerConfig(), experts=EXPERTS),
    "limited experts": layered(LayerConfig(channel="experts", expert_limit=0.4), experts=ExpertsConfig(4, 2, 160)),
}
each_case = pytest.mark.parametrize("case", CASES)


def in_types(linear: LinearWeights, *kinds: str) -> LinearWeights:
    """Other weights, of as many rows of each type."""
    outputs, inputs = linear.matrix.shape
    rows = outputs // len(kinds)

    def part(place: int, kind: str) -> MatrixPart:
        data = random_blocks(kind, rows, inputs, np.random.default_rng((outputs, inputs, place)))
        values = torch.from_numpy(dequantised(data, kind))
        return MatrixPart(
            kind, rows, lambda: values, StoredTensor(kind, (rows, inputs), data.reshape(-1), in_blocks=True)
        )

    return replace(linear, weight=FileMatrix(tuple(map(part, range(len(kinds)), kinds)), inputs, torch.float32))


def in_two_types(weights: DecoderWeights) -> DecoderWeights:
    """All gates in other blocks than their ups, but every third expert's; other matrices in blocks, too."""

    def raised(mlp: MlpWeights, *kinds: str) -> MlpWeights:
        return MlpWeights(in_types(mlp.up, *kinds), in_types(mlp.down, "Q8_0"))

    def mixed(mixer: MixerWeights | None) -> MixerWeights:
        assert isinstance(mixer, AttentionWeights)
        return replace(mixer, qkv=in_types(mixer.qkv, "Q8_0"), output=in_types(mixer.output, "Q8_0"))

    def changed(channel: ChannelWeights | None) -> ChannelWeights | None:
        if isinstance(channel, MlpWeights):
            return raised(channel, "Q4_0", "Q5_0")
        assert isinstance(channel, ExpertsWeights)
        experts = tuple(
            raised(each, *(("Q5_0",) if index % 3 == 2 else ("Q5_1", "Q4_0")))
            for index, each in enumerate(channel.experts)
        )
        shared = None if channel.shared is None else raised(channel.shared, "Q5_0", "Q4_1")
        return replace(channel, experts=experts, shared=shared)

    layers = (replace(each, mixer=mixed(each.mixer), channel=changed(each.channel)) for each in weights.layers)
    return replace(weights, layers=tuple(layers), head=in_types(weights.head, "Q8_0"))


def logits(backend: Backend, rows: int = 50) -> Tensor:
    return backend.forward(make_pass(Rows(random_tokens(rows), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK)).logits


def weights_of(case: str) -> tuple[ModelConfig, DecoderWeights]:
    return CASES[case], in_two_types(random_weights(CASES[case]))


@each_isa
@each_case
def test_rows_are_those_of_both_types(case: str, isa: str) -> None:
    config, weights = weights_of(case)
    expected = logits(TorchBackend(config, weights, torch.float32))
    off, by_bf16 = (
        float((logits(NativeBackend(config, weights, each, 2, isa)) - expected).norm() / expected.norm())
        for each in ("nearest", "bf16")
    )
    assert off < by_bf16 < 0.02


@each_isa
@pytest.mark.parametrize("case", thorough_but(["experts"], CASES))
def test_rows_keep_their_bits(case: str, isa: str) -> None:
    config, weights = weights_of(case)
    check_rows_of_their_own(config, "nearest", isa, weights=weights)


@pytest.mark.thorough
@pytest.mark.parametrize("isa", isa_params(("amx", "amx-emulated", "avx2")))
@each_case
def test_rows_keep_their_bits_in_larger_company(case: str, isa: str) -> None:
    """Of more rows than go through tiles, or layers, together."""
    config, weights = weights_of(case)
    backend = NativeBackend(config, weights, "nearest", 2, isa)
    tokens = random_tokens(257)
    alone, *together = (
        run_chunks(backend, backend.allocate_cache(9, BLOCK), tokens, sizes, range(9))
        for sizes in ([1], [33], [64], [257])
    )
    assert all(torch.equal(each, alone) for each in together)


@needs_native
def test_adapters_change_them_too() -> None:
    """As what they come to, added to the weights."""
    config, weights = weights_of("dense")
    first, *rest = weights.layers
    assert isinstance(first.channel, MlpWeights)
    generator = torch.Generator().manual_seed(1)
    down, up = torch.randn(2, 96, generator=generator), torch.randn(192, 2, generator=generator) / 5
    backend = NativeBackend(config, weights, "nearest", 2)
    adapter = backend.compiled_adapter(AdapterWeights({(0, 2): (down, up)}, ""))
    batch = replace(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), adapters=(adapter,))
    said = backend.forward(batch, backend.allocate_cache(6, BLOCK)).logits
    changed = replace(first.channel, up=replace(first.channel.up, weight=first.channel.up.weight + up @ down))
    expected = logits(
        TorchBackend(config, replace(weights, layers=(replace(first, channel=changed), *rest)), torch.float32)
    )
    assert float((said - expected).norm()) < 0.01 * float((logits(backend) - expected).norm())


@needs_native
def test_other_parts_than_halves_are_in_bf16() -> None:
    """The library tells gates from ups by the half."""
    config, weights = weights_of("dense")
    forms = nearest_forms(weights, multiplies_bytes=True)[2].tolist()
    assert forms == [OWN + KINDS["Q4_0"], *[OWN + KINDS["Q5_0"]] * 6]
    first, *rest = weights.layers
    assert isinstance(first.channel, MlpWeights)
    up = in_types(first.channel.up, "Q4_0", "Q5_0", "Q5_0", "Q5_0")
    thirds = replace(weights, layers=(replace(first, channel=replace(first.channel, up=up)), *rest))
    assert set(nearest_forms(thirds, multiplies_bytes=True)[2].tolist()) == {BF16}
    assert logits(NativeBackend(config, thirds, "nearest", 1)).isfinite().all()
