"""Attention to compressed keys in the native pass: as PyTorch computes it, and a row's bits are its own."""

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
from headstart.common.enumerations import CacheType
from headstart.models.compressed_config import CompressedConfig, Compression
from headstart.models.config import LayerConfig, ModelConfig, RopeConfig

ROPES = RopeConfig(theta=1000.0, dim=8), RopeConfig(theta=5000.0, dim=8)


def compressed(of: CompressedConfig, *compressions: Compression | None, **changes: object) -> ModelConfig:
    """A layer for each, which see windows of seven tokens."""
    layers = tuple(LayerConfig(7, 0 if each is None else 1, "compressed", compression=each) for each in compressions)
    sizes: dict[str, object] = {"num_heads": 4, "num_kv_heads": 1} | changes
    return small_config(layers=layers, compressed=of, ropes=ROPES, **sizes)


SIZES = CompressedConfig(64, 2, 32, 16, 32)
KINDS = {
    "all": compressed(SIZES, Compression(16), Compression(4, 3), None, Compression(4, 5)),
    "few": compressed(SIZES, Compression(40), None, Compression(33)),
    "chosen, then all": compressed(SIZES, Compression(2, 4), Compression(3)),
    "windows alone": compressed(SIZES, None, None),
    "many heads": compressed(CompressedConfig(96, 5, 64, 27, 64), Compression(5, 2), num_heads=20, head_dim=64),
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
    check_rows_of_their_own(KINDS["all"], precision, isa)


@needs_native
@pytest.mark.parametrize("cache_type", [CacheType.AUTO, CacheType.Q8_0])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@each_kind
def test_so_they_are_in_every_kind(kind: str, precision: Precision, cache_type: CacheType) -> None:
    check_rows_of_their_own(KINDS[kind], precision, FASTEST, cache_type)


@needs_native
@pytest.mark.parametrize("threads", thorough_but([3], [1, 3]))
def test_long_texts_and_more_rows_than_a_panel(threads: int) -> None:
    """Chunks of 512 positions are merged, dealt by items or by chunks."""
    config, blocks = KINDS["all"], list(range(35))
    tokens = random_tokens(1100, seed=1)  # among which no two keys are as good to the last bits
    reference = TorchBackend(config, random_weights(config), torch.float32)
    expected = reference.forward(make_pass(Rows(tokens, 0, blocks)), reference.allocate_cache(35, BLOCK)).logits
    backend = native(config, "fp32", FASTEST, threads)
    whole = backend.forward(make_pass(Rows(tokens, 0, blocks)), backend.allocate_cache(35, BLOCK)).logits
    assert (whole - expected).abs().max().item() <= 2e-4
    storage = backend.allocate_cache(35, BLOCK)
    assert torch.equal(run_chunks(backend, storage, tokens, [300, 1, 20, 700, 1], blocks), whole)


@needs_native
@pytest.mark.parametrize("cache_type", [CacheType.AUTO, CacheType.Q8_0])
def test_what_is_moved_and_copied_is_read_again(cache_type: CacheType) -> None:
    backend, tokens = native(KINDS["all"], "bf16", FASTEST, 2), random_tokens(50)
    storage = backend.allocate_cache(6, BLOCK, cache_type=cache_type)
    expected = run_chunks(backend, storage, tokens, [50], [0, 1])
    storage.copy_blocks([0, 1], [4, 5])
    for last in (31, 40):  # windows end with both
        storage.move([4 * BLOCK + last], [3 * BLOCK])
        storage.move([3 * BLOCK], [4 * BLOCK + last])
    assert torch.equal(run_chunks(backend, storage, tokens[48:], [1], [4, 5], start=48), expected[48:])


@needs_native
def test_what_has_been_there_before_is_not_seen() -> None:
    """Of other texts, whose windows ended elsewhere."""
    backend, tokens = native(KINDS["all"], "bf16", FASTEST, 2), random_tokens(40)
    fresh, used = (backend.allocate_cache(3, BLOCK) for _ in range(2))
    run_chunks(backend, used, random_tokens(64, seed=5), [64], [1, 0])
    expected, again = (run_chunks(backend, each, tokens, [23, 17], [0, 1]) for each in (fresh, used))
    assert torch.equal(expected, again)


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_instruction_sets_of_one_arithmetic_agree(precision: Precision) -> None:
    check_instruction_sets_agree(KINDS["many heads"], precision)


@needs_native
def test_a_row_that_breaks_does_not_break_others() -> None:
    check_a_broken_row_is_alone(KINDS["all"], FASTEST)


@pytest.mark.parametrize(
    ("changes", "size"), [({"q_rank": 40}, 40), ({"output_rank": 12}, 12), ({"index_dim": 16}, 16)]
)
def test_sizes_that_do_not_fit_are_told(changes: dict[str, int], size: int) -> None:
    assert f"{size}, is no multiple of 32" in str(supports(compressed(replace(SIZES, **changes), None)))
