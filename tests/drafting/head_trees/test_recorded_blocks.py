"""What a block head reads and says by recordings is what it reads and says without."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from head_toys import random_block, random_tables
from reruns import Reruns

from headstart.backends.torch.block_pass import BlockPass
from headstart.backends.torch.head_kit import torch_kit
from headstart.drafting.heads.head_pass import DraftRows

VOCAB = 40


@pytest.mark.parametrize(
    "changes", [{}, {"causal": True}, {"root_speaks": True}, {"windows": (9, 0), "causal_windows": True}]
)
def test_blocks_beside_texts_that_grow(changes: dict[str, object]) -> None:
    """Several texts, of which some wait while others go on, in a pool that moves once."""
    head, tables, recorder = random_block(VOCAB, **changes), random_tables(VOCAB), Reruns(torch.device("cpu"))
    passes = [BlockPass(head, tables, torch_kit(torch.float32, "cpu", each)) for each in (None, recorder)]
    rng = np.random.default_rng(0)
    caches = [[each.new_cache() for _ in range(3)] for each in passes]
    width = len(head.config.taps) * head.config.target_hidden_size
    for turn in range(8):
        places = [[0], [0, 1, 2], [1, 2], [2]][turn % 4]
        counts = [70 if turn == 1 and place == 1 else int(rng.integers(1, 6)) for place in places]
        if turn == 6:
            counts[0] = 4200
        features = torch.from_numpy(rng.normal(size=(sum(counts), width)).astype(np.float32))
        roots = rng.integers(0, VOCAB, len(places)).astype(np.int32)
        said = []
        for running, own in zip(passes, caches, strict=True):
            running.read(features, [DraftRows(own[place], count) for place, count in zip(places, counts, strict=True)])
            said.append([running.block(roots, [own[place] for place in places], 3) for _ in range(3)])
        for expected, found in zip(*said, strict=True):
            for wanted, made in zip(expected, found, strict=True):
                torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
        assert [cache.rows for cache in caches[0]] == [cache.rows for cache in caches[1]]
    assert recorder.replayed > recorder.recorded > 4
