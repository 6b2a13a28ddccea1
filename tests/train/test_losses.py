from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headstart_train.objectives import losses
from headstart_train.objectives.losses import (
    ROW_LOSSES,
    block_weights,
    kl_then_acceptance,
    soft_cross_entropy,
    sum_by_rows,
    total_variation,
)
from headstart_train.vocabulary import choose_draft_vocabulary

P = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.1, 0.0]])
Q = torch.tensor([[0.2, 0.3, 0.5], [0.3, 0.3, 0.4]])


def test_values_by_hand() -> None:
    assert total_variation(Q.log(), P).tolist() == pytest.approx([0.3, 0.6])
    expected = [-(0.5 * np.log(0.2) + 0.3 * np.log(0.3) + 0.2 * np.log(0.5)), -(0.9 * np.log(0.3) + 0.1 * np.log(0.3))]
    assert soft_cross_entropy(Q.log(), P).tolist() == pytest.approx(expected)
    kl = expected[0] - -(0.5 * np.log(0.5) + 0.3 * np.log(0.3) + 0.2 * np.log(0.2))
    weight = np.exp(-3 * 0.7)
    assert kl_then_acceptance(Q.log(), P)[0].item() == pytest.approx(weight * kl + (1 - weight) * 0.3)


@pytest.mark.parametrize("name", ROW_LOSSES)
def test_every_loss_is_least_where_the_draft_says_what_the_target_does(name: str) -> None:
    loss = ROW_LOSSES[name]  # type: ignore[index]
    target = torch.tensor([[0.6, 0.3, 0.1]])
    logits = torch.zeros(1, 3, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.05)
    for _ in range(400):
        optimiser.zero_grad()
        loss(logits, target).sum().backward()
        optimiser.step()
    torch.testing.assert_close(logits.softmax(-1).detach(), target, atol=0.06, rtol=0)


def test_the_draft_vocabulary_is_the_most_frequent_tokens_and_what_ends_a_turn() -> None:
    counts = np.array([5, 0, 9, 1, 9, 0, 0, 3])
    ids, coverage = choose_draft_vocabulary(counts, 4, required=[6])
    assert ids.tolist() == [0, 2, 4, 6]
    assert coverage == pytest.approx(23 / 27)
    assert choose_draft_vocabulary(counts, 6)[0].tolist() == [0, 1, 2, 3, 4, 7]
    assert choose_draft_vocabulary(counts, 99)[0].tolist() == list(range(8))


def test_the_smallest_size_that_covers_enough() -> None:
    counts = np.ones(5000, dtype=np.int64)
    counts[:1500] = 10_000
    ids, coverage = choose_draft_vocabulary(counts, None)
    assert len(ids) == 2048
    assert coverage > 0.97
    assert len(choose_draft_vocabulary(np.ones(300, dtype=np.int64), None)[0]) == 300


@pytest.mark.parametrize("name", ROW_LOSSES)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_by_slices_have_the_loss_and_gradients_of_all_at_once(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_ROWS", 2)
    row_loss = ROW_LOSSES[name]  # type: ignore[index]
    torch.manual_seed(0)
    head, unused = torch.randn(7, 3, requires_grad=True), torch.ones(2, requires_grad=True)
    states, laws = torch.randn(rows, 3, requires_grad=True), torch.randn(rows, 7).softmax(-1)
    whole = row_loss(states @ head.T, laws).sum()
    expected = torch.autograd.grad(3 * whole, (states, head))

    def of_rows(states: torch.Tensor, rows: slice) -> torch.Tensor:
        return row_loss(states @ head.T, laws[rows]).sum()

    summed = sum_by_rows(of_rows, states, (head, unused))
    (3 * summed).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(summed, whole)
    torch.testing.assert_close(states.grad, expected[0])
    if rows:
        torch.testing.assert_close(head.grad, expected[1])
    assert unused.grad is None


def test_guesses_of_a_block_weigh_what_the_block_owes_them() -> None:
    """D-PACE's equation 8, sum by sum and product by product; nothing counts behind the end of the text."""
    torch.manual_seed(0)
    accepted = torch.rand(3, 5)
    exists = torch.ones(3, 5, dtype=torch.bool)
    exists[1, 3:] = False
    weights = block_weights(accepted, exists)
    for block in range(3):
        reached = [
            math.prod(0.5 + 0.5 * float(accepted[block, i]) for i in range(m + 1)) if exists[block, m] else 0.0
            for m in range(5)
        ]
        assert weights[block].tolist() == pytest.approx([sum(reached[depth:]) for depth in range(5)], rel=1e-5)
    assert not weights[1, 3:].any()
    assert torch.equal(block_weights(torch.ones(4), torch.ones(4)), torch.tensor([4.0, 3.0, 2.0, 1.0]))
