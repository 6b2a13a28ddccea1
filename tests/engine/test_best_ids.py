from __future__ import annotations

import numpy as np
import pytest
import torch

from headstart.engine.wanted_rows import best_ids


@pytest.mark.parametrize("vocab", [5, 384, 767, 768, 1000, 5000])
@pytest.mark.parametrize("count", [1, 8, 20])
def test_the_best_of_every_row_come_in_order(vocab: int, count: int) -> None:
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(vocab))
    wanted = logits.argsort(dim=1, descending=True)[:, :count]
    assert np.array_equal(best_ids(logits, count), wanted.numpy())


def test_neighbours_and_the_last_tokens_are_found_too() -> None:
    logits = torch.zeros(1, 4001)
    logits[0, [0, 384, 768, 4000, 3999]] = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    assert best_ids(logits, 5).tolist() == [[0, 384, 768, 4000, 3999]]
