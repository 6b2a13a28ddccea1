"""Keys and values in 8 bits, by PyTorch."""

from __future__ import annotations

import pytest
import torch
from devices import PLACES, on
from test_torch_backend import load
from torch import Tensor

from headstart.backends.torch.few_bit_rows import kept_row, read_rows, write_rows
from headstart.common.enumerations import CacheType
from headstart.passes.runner import cache_bytes_per_token
from passes import BLOCK_SIZE, Rows, make_pass, path_to, random_tokens, scattered, usual_distance

FEW_BITS = [CacheType.Q8_0, CacheType.FP8]
TREE = [-1, 0, 0, 1, 1, 2, 4, 6, 3]


def kept(rows: Tensor, cache_type: CacheType) -> Tensor:
    """What is read of rows [row, ..., number] that stand in the last places of a cache."""
    shape, dtype = kept_row(tuple(rows.shape[1:]), rows.dtype, cache_type)
    cache = torch.zeros(len(rows) + 1, *shape, dtype=dtype)
    write_rows(cache, torch.arange(1, len(rows) + 1), rows)
    assert not read_rows(cache[:1], rows.shape[-1], rows.dtype).any()
    return read_rows(cache[1:], rows.shape[-1], rows.dtype)


@pytest.mark.parametrize("size", [16, 32, 40, 96])
def test_blocks_are_rounded_to_the_nearest_level(size: int) -> None:
    rows = torch.randn(50, 2, 3, size, generator=torch.Generator().manual_seed(1)) * 10.0 ** torch.arange(-25, 25).view(
        -1, 1, 1, 1
    )
    found = kept(rows, CacheType.Q8_0)
    for first in range(0, size, 32):
        block, read = rows[..., first : first + 32], found[..., first : first + 32]
        assert ((block - read).abs().amax(-1) <= block.abs().amax(-1) * (0.503 / 127)).all()
    assert torch.equal(kept(found, CacheType.AUTO), found)


def test_small_floats_are_near_and_end() -> None:
    rows = torch.tensor([[1.0, -2.1, 300.0, 1e6, -torch.inf, torch.nan, 0.02, 0.0]])
    found = kept(rows, CacheType.FP8)[0]
    assert found[3:5].tolist() == [448.0, -448.0]
    assert found[5].isnan()
    assert torch.allclose(found[[0, 1, 2, 6, 7]], rows[0, [0, 1, 2, 6, 7]], rtol=1 / 16)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("cache_type", FEW_BITS)
@pytest.mark.parametrize("family", ["llama", "qwen2-window", "gemma2", "gpt_oss", "deepseek_v3", "llama4"])
def test_chunks_and_trees_read_what_was_rounded(family: str, cache_type: CacheType, place: str) -> None:
    """Up to levels that PyTorch's own roundings decide: the medians of rows hardly know of them."""
    tokens, nodes = random_tokens(40, seed=1), random_tokens(len(TREE), seed=2)
    path = path_to(TREE, 7)
    with on(place) as device:
        backend = load(family, device).backend
        table, other = scattered(2, 14, seed=1)
        storage = backend.allocate_cache(28, BLOCK_SIZE, cache_type=cache_type)
        text = [*tokens, *(nodes[row] for row in path)]
        whole = backend.forward(make_pass([Rows(text, 0, table)]), storage).logits.cpu()
        exact = backend.forward(make_pass([Rows(text, 0, table)]), backend.allocate_cache(28, BLOCK_SIZE)).logits.cpu()
        rounding, parts, done = usual_distance(whole, exact), [], 0
        assert 0 < rounding < 2
        for count in (13, 1, 2, 17, 1, 6):
            rows = Rows(tokens[done : done + count], done, other)
            parts.append(backend.forward(make_pass([rows]), storage).logits.cpu())
            done += count
        assert usual_distance(torch.cat(parts), whole[:40]) < rounding / 2
        tree = backend.forward(make_pass([Rows(nodes, 40, other, TREE)]), storage).logits.cpu()
        assert usual_distance(tree[path], whole[40:]) < rounding / 2


def test_a_cache_of_blocks_takes_about_half_the_memory() -> None:
    for family, of_q8_0 in (("llama", 34 / 128), ("deepseek_v3", 34 / 128)):
        backend = load(family).backend
        sizes = [cache_bytes_per_token(backend, each) for each in (CacheType.AUTO, *FEW_BITS)]
        row = backend.allocate_cache(1, BLOCK_SIZE).pages[0].shape[-1]  # type: ignore[attr-defined]
        assert sizes[2] * 4 == sizes[0]
        assert sizes[1] == int(sizes[0] * of_q8_0 * (-(-row // 32) * 32 / row))
