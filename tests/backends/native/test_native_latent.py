"""Latent attention in the native pass: as PyTorch computes it, and a row's bits are its own."""

from __future__ import annotations

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
from torch import Tensor

from headstart.backends.native.precision import Precision
from headstart.backends.native.supported import supports
from headstart.backends.torch.backend import TorchBackend
from headstart.models.config import (
    AttentionConfig,
    IndexerConfig,
    LatentConfig,
    LayerConfig,
    ModelConfig,
    OutputHeadConfig,
    QueryGrowth,
    RopeConfig,
)
from headstart.models.experts_config import ExpertsConfig


def latent(
    of: LatentConfig, heads: int = 3, mixed: bool = False, shares: bool = False, **changes: object
) -> ModelConfig:
    second = LayerConfig(mixer="latent", channel="experts" if mixed else "mlp", shares_choice=shares)
    layers = (LayerConfig(mixer="latent"), second)
    rope = RopeConfig(theta=1000.0, dim=of.rope_dim)
    sizes = {"num_heads": heads, "num_kv_heads": heads, "head_dim": of.plain_dim + of.rope_dim}
    return small_config(layers=layers, latent=of, ropes=(rope,), **sizes, **changes)


KINDS = {
    "queries of the row": latent(LatentConfig(64, 32, 32, 64)),
    "queries of a state": latent(LatentConfig(64, 32, 32, 64, q_rank=96)),
    "odd sizes": latent(LatentConfig(96, 96, 32, 32, q_rank=32), heads=5),
    "large states": latent(LatentConfig(512, 128, 64, 128, q_rank=160), heads=2),
    "more heads than a tile": latent(LatentConfig(32, 32, 32, 32), heads=27),
    "with experts": latent(
        LatentConfig(64, 64, 32, 32, q_rank=64),
        mixed=True,
        experts=ExpertsConfig(9, 3, 40, shared_size=72, groups=3, groups_used=2, score="sigmoid", correction=True),
    ),
    "own scale and growth": latent(
        LatentConfig(64, 32, 32, 64),
        attention=AttentionConfig(scale=0.2, query_growth=QueryGrowth(0.3, 7)),
        head=OutputHeadConfig(tied=False),
    ),
    "one head": latent(LatentConfig(64, 32, 32, 64, q_rank=64), heads=1),
    "chosen tokens": latent(LatentConfig(64, 32, 32, 64, q_rank=96, indexer=IndexerConfig(27, 64, 9))),
    "pooled keys": latent(LatentConfig(64, 32, 32, 64, q_rank=96, indexer=IndexerConfig(16, 64, 3, pool=4))),
    "a shared choice": latent(
        LatentConfig(64, 32, 32, 64, q_rank=64, indexer=IndexerConfig(3, 96, 9, turns_last=True)), shares=True
    ),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def torch_logits(kind: str) -> Tensor:
    torch.set_num_threads(1)
    backend = TorchBackend(KINDS[kind], random_weights(KINDS[kind]), torch.float32)
    return backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK)).logits


@each_isa
@each_kind
def test_logits_are_pytorchs(kind: str, isa: str) -> None:
    backend = native(KINDS[kind], "fp32", isa, 2)
    assert supports(KINDS[kind]) is None
    out = backend.forward(make_pass(Rows(random_tokens(50), 0, SHUFFLED)), backend.allocate_cache(6, BLOCK))
    assert (out.logits - torch_logits(kind)).abs().max().item() <= 1e-4


@each_isa
@each_precision
def test_a_rows_bits_are_its_own(precision: Precision, isa: str) -> None:
    check_rows_of_their_own(KINDS["queries of a state"], precision, isa)


@needs_native
@pytest.mark.parametrize("precision", ["bf16", "int4"])
@each_kind
def test_so_they_are_in_every_kind(kind: str, precision: Precision) -> None:
    check_rows_of_their_own(KINDS[kind], precision, FASTEST)


@needs_native
@pytest.mark.parametrize(("kind", "bf16"), [("queries of a state", 1.0), ("chosen tokens", 1e9), ("pooled keys", 1e9)])
def test_long_texts_and_more_rows_than_a_panel(kind: str, bf16: float) -> None:
    """Chunks of 512 positions are merged, dealt by items or by chunks. In bf16 other tokens are chosen."""
    config = KINDS[kind]
    tokens, blocks = random_tokens(1100), list(range(35))
    reference = TorchBackend(config, random_weights(config), torch.float32)
    expected = reference.forward(make_pass(Rows(tokens, 0, blocks)), reference.allocate_cache(35, BLOCK)).logits
    for precision, near in (("fp32", 2e-4), ("bf16", bf16)):
        backend = native(config, precision, FASTEST, 2)  # type: ignore[arg-type]
        whole = backend.forward(make_pass(Rows(tokens, 0, blocks)), backend.allocate_cache(35, BLOCK)).logits
        assert (whole - expected).abs().max().item() <= near
        storage = backend.allocate_cache(35, BLOCK)
        assert torch.equal(run_chunks(backend, storage, tokens, [300, 1, 20, 700, 1], blocks), whole)


@needs_native
@pytest.mark.parametrize("kind", ["chosen tokens", "pooled keys", "a shared choice"])
def test_trees_see_what_pytorchs_do(kind: str) -> None:
    """Branches end pools at other rows."""
    config, tokens = KINDS[kind], random_tokens(50)
    tree = Rows(tokens[26:37], 26, SHUFFLED[:3], (-1, 0, 1, 2, 3, 4, 0, 6, 7, 8, 1))
    shown = []
    for backend in (TorchBackend(config, random_weights(config), torch.float32), native(config, "fp32", FASTEST, 2)):
        storage = backend.allocate_cache(6, BLOCK)
        run_chunks(backend, storage, tokens[:26], [15, 11], SHUFFLED[:3])
        shown.append(backend.forward(make_pass(Rows(tokens[:21], 0, SHUFFLED[3:]), tree), storage).logits)
    assert (shown[0] - shown[1]).abs().max().item() <= 1e-4


@needs_native
@pytest.mark.parametrize("kind", ["queries of a state", "chosen tokens", "pooled keys"])
def test_what_is_moved_and_copied_is_read_again(kind: str) -> None:
    backend = native(KINDS[kind], "bf16", FASTEST, 2)
    tokens = random_tokens(40)
    storage = backend.allocate_cache(6, BLOCK)
    expected = run_chunks(backend, storage, tokens, [40], [0, 1])
    storage.copy_blocks([0, 1], [4, 5])
    storage.move([4 * BLOCK + 3, 4 * BLOCK + 3], [3 * BLOCK, 4 * BLOCK + 3])
    assert torch.equal(run_chunks(backend, storage, tokens[38:], [1], [4, 5], start=38), expected[38:])
    one = backend.allocate_cache(3, BLOCK)
    run_chunks(backend, one, [*tokens[:5], 11, tokens[5]], [7], [0])
    row = make_pass(Rows([tokens[5]], 5, [0]))
    again = backend.forward(row, one).logits
    assert torch.equal(again, expected[5:6])


@needs_native
def test_the_cache_keeps_a_state_and_no_heads() -> None:
    """The state once as a key and once as a value."""
    config = KINDS["large states"]
    storage = native(config, "bf16", FASTEST, 1).allocate_cache(2, BLOCK)
    assert storage.nbytes == 2 * BLOCK * config.num_layers * (512 + 64 + 512) * 2


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_instruction_sets_of_one_arithmetic_agree(precision: Precision) -> None:
    check_instruction_sets_agree(KINDS["odd sizes"], precision)


@needs_native
def test_a_row_that_breaks_does_not_break_others() -> None:
    check_a_broken_row_is_alone(KINDS["queries of a state"], FASTEST)


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (LatentConfig(72, 32, 32, 64), "72, is no multiple of 32"),
        (LatentConfig(64, 32, 32, 64, q_rank=20), "20, is no multiple of 32"),
        (LatentConfig(1024, 32, 32, 64), "keeps 1056 numbers"),
    ],
)
def test_sizes_that_do_not_fit_are_told(of: LatentConfig, reason: str) -> None:
    assert reason in str(supports(latent(of)))
