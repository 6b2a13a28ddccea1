"""Attention of many kinds in the native pass: as PyTorch computes it, and a row's bits are its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from native_cases import (
    BLOCK,
    SHUFFLED,
    Rows,
    check_rows_of_their_own,
    isa_params,
    make_pass,
    native,
    random_tokens,
    random_weights,
    run_chunks,
    small_config,
)
from native_here import FASTEST, needs_native
from torch import Tensor

from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.models.config import (
    Alibi,
    AttentionConfig,
    HeadNorms,
    LayerConfig,
    NormsConfig,
    QueryGrowth,
    ResidualConfig,
    RopeConfig,
)

UNROTATED = (LayerConfig(rope=None),) * 2
SLOPES = tuple(2.0 ** -(i + 1) for i in range(6))

KINDS = {
    "alibi": small_config(layers=UNROTATED, ropes=(), attention=AttentionConfig(alibi=Alibi(SLOPES))),
    "coarse alibi": small_config(
        layers=UNROTATED, ropes=(), attention=AttentionConfig(alibi=Alibi(SLOPES, scale=0.18, coarse=True))
    ),
    "norms behind the rotation": small_config(attention=AttentionConfig(qk_norm=HeadNorms(rotated=True))),
    "cut off, rotated, normed": small_config(attention=AttentionConfig(qk_norm=HeadNorms(rotated=True), qkv_clip=0.9)),
    "own norms": small_config(attention=AttentionConfig(qk_norm=HeadNorms("layer", own=True))),
    "biased norms": small_config(attention=AttentionConfig(qk_norm=HeadNorms("layer", bias=True))),
    "norms of rotated layers": small_config(
        attention=AttentionConfig(qk_norm=HeadNorms(rotated=True, everywhere=False)),
        layers=(LayerConfig(), LayerConfig(rope=None)),
    ),
    "chunks": small_config(layers=(LayerConfig(chunk=7), LayerConfig(chunk=32))),
    "chunks and windows": small_config(layers=(LayerConfig(window=5, chunk=16), LayerConfig())),
    "growing queries": small_config(attention=AttentionConfig(query_growth=QueryGrowth(0.4, 7))),
    "growing unrotated queries": small_config(
        attention=AttentionConfig(query_growth=QueryGrowth(0.4, 7, everywhere=False)),
        layers=(LayerConfig(), LayerConfig(rope=None)),
    ),
    "gate": small_config(attention=AttentionConfig(gate="element")),
    "shared norm": small_config(residual=ResidualConfig(parallel=True), norms=NormsConfig(shared=True, kind="layer")),
    "few rotated dimensions": small_config(ropes=(RopeConfig(theta=1000.0, dim=12),)),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def torch_logits(kind: str, count: int) -> Tensor:
    torch.set_num_threads(1)
    backend = TorchBackend(KINDS[kind], random_weights(KINDS[kind]), torch.float32)
    blocks = list(range(-(-count // BLOCK)))
    storage = backend.allocate_cache(len(blocks), BLOCK)
    return backend.forward(make_pass(Rows(random_tokens(count), 0, blocks)), storage).logits


@pytest.mark.parametrize("isa", isa_params())
@each_kind
def test_logits_are_pytorchs(kind: str, isa: str) -> None:
    backend = native(KINDS[kind], "fp32", isa, 2)
    assert supports(KINDS[kind]) is None
    out = backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK))
    assert (out.logits - torch_logits(kind, 50)).abs().max().item() <= 1e-4


@needs_native
@pytest.mark.parametrize("precision", ["bf16", "int4"])
@each_kind
def test_a_rows_bits_are_its_own(kind: str, precision: str) -> None:
    check_rows_of_their_own(KINDS[kind], precision, FASTEST)  # type: ignore[arg-type]


@needs_native
@pytest.mark.parametrize("kind", ["alibi", "coarse alibi", "chunks", "growing queries"])
def test_far_positions(kind: str) -> None:
    """Chunks of 512 positions are merged; bf16 rounds what ALiBi's positions are from 257 on."""
    backend, tokens, blocks = native(KINDS[kind], "fp32", FASTEST, 2), random_tokens(700), list(range(22))
    whole = backend.forward(make_pass(Rows(tokens, 0, blocks)), backend.allocate_cache(22, BLOCK)).logits
    assert (whole - torch_logits(kind, 700)).abs().max().item() <= 2e-4
    storage = backend.allocate_cache(22, BLOCK)
    assert torch.equal(run_chunks(backend, storage, tokens, [300, 1, 20, 330, 1], blocks), whole)


def test_what_is_left_to_pytorch() -> None:
    clipped = replace(KINDS["own norms"], attention=replace(KINDS["own norms"].attention, qkv_clip=1.0))
    assert supports(clipped) == "PyTorch alone has a limit of heads that are normed one by one"
    joint = small_config(attention=AttentionConfig(qk_norm=HeadNorms(reach="all", rotated=True)))
    assert supports(joint) == "PyTorch alone has norms of heads of this kind"
