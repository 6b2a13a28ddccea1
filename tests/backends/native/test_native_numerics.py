"""The native pass computes what the torch decoder computes, for every piece a decoder is made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from native_cases import (
    Rows,
    isa_params,
    make_pass,
    native,
    random_tokens,
    random_tree,
    random_weights,
    run_chunks,
    small_config,
    with_linears,
)
from torch import Tensor

from headstart.backends.native.precision import Precision
from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    HeadNorms,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    ResidualConfig,
    RopeConfig,
)
from headstart.models.linear_weights import LinearWeights
from headstart.models.weights import DecoderWeights
from headstart.passes.batch import FINAL_TAP, RowInputs, TapStates

ROPE32 = RopeConfig(theta=1000.0, dim=32)
SHAPES: dict[str, ModelConfig] = {
    "llama": small_config(),
    "one kv head, more heads than a tile": small_config(num_heads=20, num_kv_heads=1),
    "every head its own kv head": small_config(num_heads=3, num_kv_heads=3),
    "head 64": small_config(num_heads=4, head_dim=64, ropes=(RopeConfig(theta=1e4, dim=64),)),
    "head 128": small_config(num_heads=2, head_dim=128, ropes=(RopeConfig(theta=1e4, dim=128),)),
    "head 96, part rotated": small_config(num_heads=2, head_dim=96, ropes=(RopeConfig(theta=1e4, dim=32),)),
    "odd sizes": small_config(vocab_size=65, hidden_size=83, mlp_size=77),
    "untied head": small_config(head=OutputHeadConfig(tied=False)),
    "biases": small_config(attention=AttentionConfig(qkv_bias=True, output_bias=True), mlp=MlpConfig(bias=True)),
    "q/k norm": small_config(attention=AttentionConfig(qk_norm=HeadNorms())),
    "windows": small_config(layers=(LayerConfig(window=9), LayerConfig(window=40))),
    "layer without positions": small_config(layers=(LayerConfig(), LayerConfig(rope=None))),
    "layers of one part": small_config(
        layers=(LayerConfig(mixer="none"), LayerConfig(channel="none"), LayerConfig(mixer="none")),
        mlp=MlpConfig(gated=False, activation="relu2"),
    ),
    "yarn": small_config(
        ropes=(RopeConfig(theta=1000.0, dim=32, scaling={
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "attention_factor": 1.4,
            "beta_fast": 4.0, "beta_slow": 1.0, "truncate": True,
        }),),
    ),
    "longrope, most of a head rotated": small_config(
        num_heads=2, head_dim=128, ropes=(RopeConfig(
            theta=1000.0, dim=96, factors=tuple(1 + i / 16 for i in range(48)),
            scaling={"rope_type": "longrope", "attention_factor": 1.2, "original_max_position_embeddings": 2048},
        ),),
    ),
    "head 96, all rotated": small_config(num_heads=2, head_dim=96, ropes=(RopeConfig(theta=1e4, dim=96),)),
    "two ropes": small_config(
        ropes=(ROPE32, RopeConfig(theta=50.0, dim=32, scaling={"rope_type": "linear", "factor": 3.0})),
        layers=(LayerConfig(rope=1), LayerConfig(rope=0)),
    ),
    "layer norm, plain gelu mlp, learned positions": small_config(
        norms=NormsConfig("layer"), mlp=MlpConfig("gelu", gated=False, bias=True), ropes=(), max_positions=128,
        embedding=EmbeddingConfig(positions="learned"), layers=(LayerConfig(rope=None),) * 2,
        attention=AttentionConfig(qkv_bias=True, output_bias=True),
    ),
    "parallel residual": small_config(
        norms=NormsConfig("layer"), residual=ResidualConfig(parallel=True), mlp=MlpConfig("gelu_tanh", gated=False)
    ),
    "post norms and soft caps": small_config(
        norms=NormsConfig(post=True, offset=1.0), mlp=MlpConfig("gelu_tanh"), embedding=EmbeddingConfig(0.7),
        attention=AttentionConfig(softcap=2.0, scale=0.3), head=OutputHeadConfig(softcap=3.0),
        residual=ResidualConfig(tap_scale=0.22),
    ),
}  # fmt: skip


def logits_and_taps(backend: object, tokens: list[int]) -> tuple[Tensor, TapStates]:
    """A prefill, then a tree behind it: both kinds of attention."""
    storage = backend.allocate_cache(8, 32)  # type: ignore[attr-defined]
    tree = random_tree(9, seed=3)
    prefill = make_pass(Rows(tokens[:45], 0, [3, 1, 6, 2]))
    first = backend.forward(prefill, storage).logits  # type: ignore[attr-defined]
    batch = make_pass(Rows(tokens[45:54], 45, [3, 1, 6, 2], tree), taps=(0, 1, 2, FINAL_TAP))
    out = backend.forward(batch, storage)  # type: ignore[attr-defined]
    return torch.cat([first, out.logits]), out.hidden


def mean_error(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().mean())


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", SHAPES)
def test_fp32_equals_torch(name: str, isa: str) -> None:
    config = SHAPES[name]
    assert supports(config) is None
    tokens = random_tokens(54, vocab=config.vocab_size)
    expected, expected_taps = logits_and_taps(TorchBackend(config, random_weights(config)), tokens)
    actual, taps = logits_and_taps(native(config, "fp32", isa), tokens)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert taps.taps == expected_taps.taps
    np.testing.assert_allclose(taps.states, expected_taps.states, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("name", SHAPES)
def test_bf16_is_at_least_as_close_as_torch_bf16(name: str, isa: str) -> None:
    config = SHAPES[name]
    tokens = random_tokens(54, vocab=config.vocab_size)
    reference, _ = logits_and_taps(TorchBackend(config, random_weights(config)), tokens)
    torch_bf16, _ = logits_and_taps(TorchBackend(config, random_weights(config), torch.bfloat16), tokens)
    actual, _ = logits_and_taps(native(config, "bf16", isa), tokens)
    assert mean_error(actual, reference) < 1.1 * mean_error(torch_bf16.float(), reference)


def rounded_per_channel(linear: LinearWeights) -> LinearWeights:
    weight = linear.weight.float()
    unit = weight.abs().amax(1, keepdim=True) / 127
    return replace(linear, weight=(weight / unit).round() * unit)


def rounded_weights(weights: DecoderWeights) -> DecoderWeights:
    layers = tuple(with_linears(layer, lambda _, linear: rounded_per_channel(linear)) for layer in weights.layers)
    return replace(weights, layers=layers, head=rounded_per_channel(weights.head))


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(("precision", "limit"), [("int8", 0.01), ("int8-fast", 0.06)])
@pytest.mark.parametrize("name", ["llama", "odd sizes", "biases", "parallel residual"])
def test_int8_is_the_float_model_with_rounded_weights(name: str, precision: Precision, limit: float, isa: str) -> None:
    """Two planes leave the weights' rounding and the cache's as the only errors; one plane adds the activations'."""
    config = SHAPES[name]
    tokens = random_tokens(54, vocab=config.vocab_size)
    expected, _ = logits_and_taps(TorchBackend(config, rounded_weights(random_weights(config))), tokens)
    actual, _ = logits_and_taps(native(config, precision, isa), tokens)
    assert mean_error(actual, expected) < limit * float(expected.std())


@pytest.mark.parametrize("isa", isa_params())
def test_early_exit_and_long_context(isa: str) -> None:
    config = small_config(layers=(LayerConfig(),) * 3)
    tokens = random_tokens(700)
    blocks = list(range(25))
    reference = TorchBackend(config, random_weights(config))
    backend = native(config, "fp32", isa)
    batch = make_pass(Rows(tokens, 0, blocks), logit_rows=[3, 300, 699], num_layers=2, taps=(2,))
    expected = reference.forward(batch, reference.allocate_cache(25, 32))
    actual = backend.forward(batch, backend.allocate_cache(25, 32))
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(actual.hidden[2], expected.hidden[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "embedding",
    [EmbeddingConfig(), EmbeddingConfig(9.8), EmbeddingConfig(positions="learned")],
    ids=["plain", "scaled", "positions"],
)
def test_inputs_in_place_of_tokens(isa: str, precision: Precision, embedding: EmbeddingConfig) -> None:
    """Rows that are given what their tokens' embedding is say the same, beside rows that read their token."""
    config = small_config(embedding=embedding)
    backend = native(config, precision, isa)
    tokens = random_tokens(20)
    expected = run_chunks(backend, backend.allocate_cache(2, 32), tokens, [20], [0])
    rows = np.array([0, 3, 4, 19], np.int32)
    embedded = random_weights(config).embedding.to(torch.bfloat16 if precision == "bf16" else torch.float32)
    values = embedded[[tokens[row] for row in rows]].float() * config.embedding.scale
    hidden = [0 if place in rows else token for place, token in enumerate(tokens)]
    batch = make_pass(Rows(hidden, 0, [1]), inputs=RowInputs(rows, values))
    assert torch.equal(backend.forward(batch, backend.allocate_cache(2, 32)).logits, expected)
    with pytest.raises(ValueError, match="inputs are"):
        backend.forward(replace(batch, inputs=RowInputs(rows, values[1:])), backend.allocate_cache(2, 32))
