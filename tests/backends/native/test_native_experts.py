"""Mixtures of experts in the native pass: as PyTorch computes them, and a row's bits are its own."""

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
from headstart.models.config import AttentionConfig, HeadNorms, LayerConfig, MlpConfig, ModelConfig, NormsConfig
from headstart.models.experts_config import ExpertsConfig

PLAIN = ExpertsConfig(9, 3, 40)
LAYERS = (LayerConfig(channel="experts"), LayerConfig(), LayerConfig(channel="experts"))
"""One of them dense."""


def mixed(experts: ExpertsConfig = PLAIN, **changes: object) -> ModelConfig:
    return small_config(layers=LAYERS, experts=experts, **changes)


KINDS = {
    "softmax": mixed(),
    "normalised": mixed(replace(PLAIN, normalised=True, scale=1.7)),
    "sigmoid": mixed(replace(PLAIN, score="sigmoid", correction=True, normalised=True, scale=2.5)),
    "good groups": mixed(ExpertsConfig(12, 3, 40, groups=4, groups_used=2, correction=True)),
    "two best of a group": mixed(
        ExpertsConfig(12, 3, 40, score="sigmoid", groups=3, groups_used=1, group_score="two_best")
    ),
    "sparsemixer": mixed(ExpertsConfig(9, 2, 40, score="sparsemixer")),
    "shared": mixed(replace(PLAIN, shared_size=72)),
    "shared by a gate": mixed(replace(PLAIN, shared_size=136, shared_gate=True), mlp_size=48),
    "biased and cut off": mixed(
        replace(PLAIN, bias=True, router_bias=True, clamp=0.7), attention=AttentionConfig(sinks=True)
    ),
    "without gates": mixed(replace(PLAIN, gated=False, shared_size=72), mlp=MlpConfig(gated=False, activation="relu2")),
    "scores of inputs": mixed(replace(PLAIN, score="sigmoid", scales_input=True)),
    "many": mixed(ExpertsConfig(70, 9, 24, normalised=True)),
    "all": mixed(ExpertsConfig(4, 4, 40)),
    "one": mixed(ExpertsConfig(5, 1, 40), norms=NormsConfig(post=True)),
    "only post norms": mixed(
        norms=NormsConfig(post=True, pre=False),
        attention=AttentionConfig(qk_norm=HeadNorms(reach="all"), qkv_clip=1.1),
    ),
    "layer norms": mixed(norms=NormsConfig("layer"), mlp=MlpConfig("gelu")),
    "of one part": replace(
        mixed(replace(PLAIN, shared_size=72)),
        layers=tuple(LayerConfig(mixer=m, channel=c) for m, c in (("none", "experts"), ("attention", "none"))) * 2,
    ),
}  # fmt: skip
FEW = ("two best of a group", "sparsemixer", "shared by a gate", "biased and cut off", "without gates", "many")
"""Those whose rows ``make test`` looks at one by one."""
each_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def torch_logits(kind: str) -> tuple[Tensor, float | None]:
    config = KINDS[kind]
    torch.set_num_threads(1)
    backend = TorchBackend(config, random_weights(config), torch.float32)
    out = backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK))
    return out.logits, out.experts


@each_isa
@each_kind
def test_logits_and_distinct_experts_are_pytorchs(kind: str, isa: str) -> None:
    backend = native(KINDS[kind], "fp32", isa, 2)
    assert supports(KINDS[kind]) is None
    out = backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK))
    expected, experts = torch_logits(kind)
    assert (out.logits - expected).abs().max().item() <= 1e-4
    assert out.experts == experts


@each_isa
@each_precision
def test_a_rows_bits_are_its_own(precision: Precision, isa: str) -> None:
    check_rows_of_their_own(KINDS["shared by a gate"], precision, isa)


@needs_native
@pytest.mark.parametrize("precision", ["bf16", "int4"])
@pytest.mark.parametrize("kind", thorough_but(FEW, KINDS))
def test_so_they_are_in_every_kind(kind: str, precision: Precision) -> None:
    check_rows_of_their_own(KINDS[kind], precision, FASTEST)


@each_isa
def test_more_rows_than_a_panel(isa: str) -> None:
    """An expert counts once, whichever panels call it."""
    backend = native(KINDS["many"], "bf16", isa, 2)
    tokens, blocks = random_tokens(300), list(range(10))
    whole = backend.forward(make_pass(Rows(tokens, 0, blocks)), backend.allocate_cache(10, BLOCK))
    assert torch.equal(
        run_chunks(backend, backend.allocate_cache(10, BLOCK), tokens, [70, 1, 20], blocks), whole.logits
    )
    exact = native(KINDS["many"], "fp32", isa, 2)
    once = exact.forward(make_pass(Rows(tokens, 0, blocks)), exact.allocate_cache(10, BLOCK))
    reference = TorchBackend(KINDS["many"], random_weights(KINDS["many"]), torch.float32)
    expected = reference.forward(make_pass(Rows(tokens, 0, blocks)), reference.allocate_cache(10, BLOCK))
    assert once.experts == expected.experts


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_instruction_sets_of_one_arithmetic_agree(precision: Precision) -> None:
    check_instruction_sets_agree(KINDS["shared by a gate"], precision)


@each_isa
@pytest.mark.parametrize("kind", ["softmax", "two best of a group", "sparsemixer"])
def test_a_row_that_breaks_does_not_break_others(kind: str, isa: str) -> None:
    """It calls some experts all the same, whose other rows are what they were."""
    check_a_broken_row_is_alone(KINDS[kind], isa)


@needs_native
def test_layers_that_are_not_run_do_not_count() -> None:
    backend = native(KINDS["softmax"], "fp32", FASTEST)
    reference = TorchBackend(KINDS["softmax"], random_weights(KINDS["softmax"]), torch.float32)
    for depth in (1, 2, 3):
        batch = make_pass(Rows(random_tokens(7), 0, SHUFFLED), num_layers=depth)
        counts = [each.forward(batch, each.allocate_cache(6, BLOCK)).experts for each in (backend, reference)]
        assert counts[0] == counts[1] is not None
    dense = native(small_config(), "fp32", FASTEST)
    assert dense.forward(make_pass(Rows([1], 0, [0])), dense.allocate_cache(1, BLOCK)).experts is None
