"""Layers of several sizes and what stands around them in the native pass: as PyTorch computes it, and a row's bits are
its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from native_cases import (
    BLOCK,
    SHUFFLED,
    Rows,
    check_a_broken_row_is_alone,
    check_instruction_sets_agree,
    check_rows_of_their_own,
    each_isa,
    each_precision,
    make_pass,
    native,
    random_tokens,
    random_weights,
    run_chunks,
    small_config,
)
from native_here import FASTEST, needs_native
from thinning import thorough_but
from torch import Tensor

from headstart.backends.native.precision import Precision
from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.models.config import (
    AttentionConfig,
    HeadNorms,
    LayerConfig,
    LayerInputsConfig,
    ModelConfig,
    NormsConfig,
    ResidualConfig,
    RopeConfig,
)
from headstart.models.experts_config import ExpertsConfig
from headstart.models.streams_config import StreamsConfig
from headstart.passes.batch import FINAL_TAP

NARROW, WIDE = LayerConfig(window=7), LayerConfig(rope=1, head_dim=64, num_kv_heads=3)
ROPES = (RopeConfig(1000.0, 32), RopeConfig(1e5, 64, factors=(1.0,) * 8 + (float("inf"),) * 24))


def layered(*layers: LayerConfig, **changes: object) -> ModelConfig:
    return small_config(layers=layers, ropes=ROPES, **changes)


GEMMA = {
    "attention": AttentionConfig(qk_norm=HeadNorms(), value_norm=True, scale=1.0),
    "norms": NormsConfig(post=True),
    "residual": ResidualConfig(layer_scales=True),
}
EXPERTS = ExpertsConfig(9, 3, 40, normalised=True, router_norm=True, own_scales=True)
BOTH = LayerConfig(channel="mlp+experts")
KINDS = {
    "heads of several sizes": layered(NARROW, WIDE),
    "heads of 512": small_config(head_dim=512, num_heads=3, num_kv_heads=1, ropes=(RopeConfig(1000.0, 512),)),
    "norms of values": layered(NARROW, WIDE, attention=AttentionConfig(value_norm=True)),
    "values that are keys": layered(
        NARROW,
        LayerConfig(rope=1, head_dim=64, values_are_keys=True),
        attention=AttentionConfig(value_norm=True, qk_norm=HeadNorms()),
    ),
    "keys of earlier layers": layered(
        NARROW, WIDE, LayerConfig(window=7, reads=0), LayerConfig(rope=1, head_dim=64, num_kv_heads=3, reads=1)
    ),
    "MLPs of several sizes": layered(LayerConfig(mlp_size=40), LayerConfig(), LayerConfig(mlp_size=224)),
    "scales of layers": layered(NARROW, WIDE, residual=ResidualConfig(layer_scales=True)),
    "scales behind norms": layered(
        NARROW, WIDE, residual=ResidualConfig(layer_scales=True), norms=NormsConfig(post=True)
    ),
    "inputs of layers": layered(
        LayerConfig(input=0), LayerConfig(), LayerConfig(input=2), layer_inputs=LayerInputsConfig(3, 64, 77)
    ),
    "small inputs of few tokens": layered(
        LayerConfig(input=0),
        LayerConfig(input=1),
        layer_inputs=LayerInputsConfig(2, 12, 40),
        residual=ResidualConfig(layer_scales=True),
    ),
    "experts beside an MLP": layered(BOTH, LayerConfig(), BOTH, experts=EXPERTS, norms=NormsConfig(post=True)),
    "experts beside an MLP, scaled": layered(
        replace(BOTH, rope=1, head_dim=64, values_are_keys=True), BOTH, experts=EXPERTS, **GEMMA
    ),
    "streams": layered(NARROW, WIDE, NARROW, residual=ResidualConfig(streams=StreamsConfig(4))),
    "two streams, not scaled": layered(
        LayerConfig(window=7, input=0),
        WIDE,
        layer_inputs=LayerInputsConfig(1, 12, 77),
        residual=ResidualConfig(streams=StreamsConfig(2, scaled=False)),
    ),
    "a second path": layered(NARROW, WIDE, residual=ResidualConfig(side_rank=10), norms=NormsConfig(post=True)),
    "gates that are cut off": layered(
        LayerConfig(sparsity=0.9, mlp_size=100), LayerConfig(), LayerConfig(sparsity=0.3)
    ),
    "streams and all beside them": layered(
        LayerConfig(window=7, input=0, sparsity=0.8),
        LayerConfig(rope=0, input=1, mlp_size=224),
        LayerConfig(window=7, reads=0, input=2),
        LayerConfig(rope=0, reads=1, input=3),
        layer_inputs=LayerInputsConfig(4, 48, 40),
        residual=ResidualConfig(streams=StreamsConfig(4), side_rank=64),
        attention=AttentionConfig(qk_norm=HeadNorms(), value_norm=True, scale=1.0),
        norms=NormsConfig(post=True),
    ),
    "all of it": layered(
        LayerConfig(window=7, input=0),
        LayerConfig(rope=1, head_dim=64, num_kv_heads=1, values_are_keys=True, input=1),
        LayerConfig(window=7, reads=0, mlp_size=224, input=2),
        LayerConfig(rope=1, head_dim=64, num_kv_heads=1, reads=1, mlp_size=224, input=3),
        layer_inputs=LayerInputsConfig(4, 48, 77),
        **GEMMA,
    ),
}
FEW = ("values that are keys", "keys of earlier layers", "experts beside an MLP, scaled", "two streams, not scaled")
FEW += ("streams and all beside them", "all of it")
"""Those whose rows ``make test`` looks at one by one."""
each_kind = pytest.mark.parametrize("kind", KINDS)
each_whole = pytest.mark.parametrize("kind", ["all of it", "streams and all beside them"])


@cache
def torch_logits(kind: str) -> Tensor:
    torch.set_num_threads(1)
    backend = TorchBackend(KINDS[kind], random_weights(KINDS[kind]), torch.float32)
    return backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK)).logits


@needs_native
@each_kind
def test_logits_are_pytorchs(kind: str) -> None:
    backend = native(KINDS[kind], "fp32", FASTEST, 2)
    assert supports(KINDS[kind]) is None
    out = backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK))
    assert (out.logits - torch_logits(kind)).abs().max().item() <= 1e-4


@each_isa
@each_whole
def test_with_every_instruction_set(kind: str, isa: str) -> None:
    backend = native(KINDS[kind], "fp32", isa, 2)
    out = backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK))
    wanted = torch_logits(kind)
    # Relative to the largest: gates that are cut off magnify what arithmetic without fused products rounds otherwise.
    assert (out.logits - wanted).abs().max().item() <= 2e-5 * wanted.abs().max().item()


@needs_native
@pytest.mark.parametrize("kind", thorough_but(FEW, KINDS))
def test_a_rows_bits_are_its_own(kind: str) -> None:
    check_rows_of_their_own(KINDS[kind], "bf16", FASTEST)


@each_isa
@each_whole
def test_so_they_are_with_every_instruction_set(kind: str, isa: str) -> None:
    check_rows_of_their_own(KINDS[kind], "bf16", isa)


@needs_native
@each_precision
@each_whole
def test_so_they_are_in_every_precision(kind: str, precision: Precision) -> None:
    check_rows_of_their_own(KINDS[kind], precision, FASTEST)


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["int4", "bf16"])
def test_instruction_sets_agree(precision: Precision) -> None:
    check_instruction_sets_agree(KINDS["all of it"], precision)


@needs_native
@each_whole
def test_a_broken_row_is_alone(kind: str) -> None:
    check_a_broken_row_is_alone(KINDS[kind], FASTEST)


def test_heads_that_are_too_wide_are_left_to_pytorch() -> None:
    assert supports(small_config(head_dim=544)) == "head_dim 544 is no multiple of 32 up to 512"
    assert supports(layered(LayerConfig(), LayerConfig(head_dim=40))) == "head_dim 40 is no multiple of 32 up to 512"
    assert supports(layered(LayerConfig(num_kv_heads=4))) == "6 heads do not share 4 kv heads evenly"


@needs_native
@each_whole
def test_taps_are_pytorchs(kind: str) -> None:
    """Of several streams, the first."""
    batch = make_pass(Rows(random_tokens(20), 0, SHUFFLED), taps=(0, 2, 4, FINAL_TAP))
    weights = random_weights(KINDS[kind])
    # The same numbers, each of the embedding rounded otherwise: what the model itself makes of roundings.
    steps = torch.randint(-1, 2, weights.embedding.shape, generator=torch.Generator().manual_seed(0))
    rounded = weights.embedding.float() * (1 + steps * torch.finfo(torch.float32).eps)
    backends = (
        native(KINDS[kind], "fp32", FASTEST, 2),
        TorchBackend(KINDS[kind], weights, torch.float32),
        TorchBackend(KINDS[kind], replace(weights, embedding=rounded), torch.float32),
    )
    ours, theirs, moved = (each.forward(batch, each.allocate_cache(6, BLOCK)).hidden for each in backends)
    for tap in batch.taps:
        # A pass rounds in many products, and the embedding is one place.
        bound = max(1e-4, 4 * abs(moved[tap] - theirs[tap]).max())
        assert abs(ours[tap] - theirs[tap]).max() <= bound


@needs_native
@each_whole
def test_nothing_ends_where_a_panel_does(kind: str) -> None:
    """A pass computes 256 rows at once."""
    backend, tokens, blocks = native(KINDS[kind], "bf16", FASTEST, 2), random_tokens(300), list(range(10))
    whole = backend.forward(make_pass(Rows(tokens, 0, blocks)), backend.allocate_cache(10, BLOCK)).logits
    assert torch.equal(run_chunks(backend, backend.allocate_cache(10, BLOCK), tokens, [100, 1, 199], blocks), whole)
    last = backend.forward(make_pass(Rows(tokens, 0, blocks), logit_rows=[299]), backend.allocate_cache(10, BLOCK))
    assert torch.equal(last.logits, whole[299:])


@needs_native
def test_keys_of_earlier_layers_take_no_room() -> None:
    backend = native(KINDS["keys of earlier layers"], "fp32", FASTEST, 2)
    narrow, wide = 2 * 2 * 32, 2 * 3 * 64
    assert backend.allocate_cache(2, BLOCK).nbytes == 2 * BLOCK * 4 * (narrow + wide)
