"""The best token of a row without its logits: the one its logits name, whatever the head and the row look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from native_cases import (
    Rows,
    each_isa,
    make_pass,
    native,
    random_tokens,
    random_weights,
    small_config,
    with_linears,
)
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.precision import PRECISIONS, Precision
from headstart.models.config import NormsConfig, OutputHeadConfig
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.passes.batch import IntArray

BLOCKS = list(range(12))
HIDDEN = 96

each_screened = pytest.mark.parametrize("precision", ["bf16", "fp32"])


def named_by(logits: Tensor) -> NDArray[np.int64]:
    """[row] the token of the highest logit, the first of equals; -1 where that is not finite."""
    rows = logits.numpy()
    best = rows.argmax(1)
    return np.where(np.isfinite(rows[np.arange(len(rows)), best]), best, -1)


def both(backend: NativeBackend, tokens: Sequence[int], kept: Sequence[int] = ()) -> tuple[IntArray, NDArray[np.int64]]:
    """Best tokens of the rows of a chunk that are not ``kept`` for logits, and what all logits name for them."""
    storage = backend.allocate_cache(len(BLOCKS), 32)
    rows = Rows(tokens, 0, BLOCKS)
    asked = np.setdiff1d(np.arange(len(tokens), dtype=np.int32), kept)
    output = backend.forward(make_pass(rows, logit_rows=kept, best_rows=asked), storage)
    whole = backend.forward(make_pass(rows), storage).logits
    assert output.best is not None
    assert output.best.dtype == np.int32
    assert torch.equal(output.logits, whole[list(kept)])
    return output.best, named_by(whole)[asked]


@each_isa
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("vocab", "softcap", "threads"), [(77, None, 1), (1501, None, 2), (77, 5.0, 1)])
def test_any_rows(precision: Precision, isa: str, vocab: int, softcap: float | None, threads: int) -> None:
    backend = native(small_config(vocab_size=vocab, head=OutputHeadConfig(softcap=softcap)), precision, isa, threads)
    tokens = random_tokens(300)
    for rows in (1, 2, 3, 13, 40, 300):
        found, expected = both(backend, tokens[:rows])
        assert found.tolist() == expected.tolist(), rows
        found, expected = both(backend, tokens[:rows], kept=range(0, rows, 3))
        assert found.tolist() == expected.tolist(), rows


def head_on(states: Tensor, head: Tensor, precision: Precision, isa: str, bias: Tensor | None = None) -> NativeBackend:
    """A backend whose head reads row i of ``states`` [state, hidden], scaled to a root mean square of 1, at token i."""
    config = small_config(
        hidden_size=HIDDEN,
        vocab_size=len(head),
        num_heads=3,
        num_kv_heads=1,
        norms=NormsConfig(eps=1e-30),
        head=OutputHeadConfig(tied=False),
    )
    weights = random_weights(config)
    silent = [
        with_linears(
            layer,
            lambda name, linear: (
                LinearWeights(torch.zeros_like(linear.weight)) if name in ("output", "down") else linear
            ),
        )
        for layer in weights.layers
    ]
    embedding = torch.zeros(len(head), HIDDEN)
    embedding[: len(states)] = states
    weights = replace(
        weights,
        embedding=embedding.bfloat16() if precision == "bf16" else embedding,
        layers=tuple(silent),
        final_norm=NormWeights(torch.ones(HIDDEN)),
        head=LinearWeights(head, bias),
    )
    return NativeBackend(config, weights, precision, 1, isa)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def near_ties() -> Tensor:
    """Rows that differ in their last bits alone."""
    return normal(1, HIDDEN) * (1 + 2.0**-8 * normal(500, HIDDEN, seed=1).round())


def exact_ties() -> Tensor:
    return normal(7, HIDDEN).repeat(60, 1)[normal(420).argsort()]


def outliers() -> Tensor:
    head = normal(500, HIDDEN)
    head[:, 3] *= 1e4
    head[::7] *= 1e3
    return head


HEADS = {
    "near ties": near_ties(),
    "exact ties": exact_ties(),
    "outliers": outliers(),
    "all the same": normal(1, HIDDEN).expand(500, HIDDEN),
    "zeros": torch.zeros(500, HIDDEN),
    "all below zero": -normal(1, HIDDEN).abs() - normal(499, HIDDEN).abs(),
    "near overflow": normal(500, HIDDEN) * 1e37,
    "subnormal": normal(500, HIDDEN) * 1e-39,
    "tiny and huge": normal(500, HIDDEN) * 10.0 ** torch.linspace(-30, 30, 500)[:, None],
}


@each_isa
@each_screened
@pytest.mark.parametrize("name", HEADS)
def test_heads_that_are_hard_to_screen(name: str, precision: Precision, isa: str) -> None:
    states = normal(40, HIDDEN, seed=5)
    states[::5, 11] = 300.0
    states[1::5] = states[1::5].abs()
    states[7] = 0
    backend = head_on(states, HEADS[name].contiguous(), precision, isa)
    found, expected = both(backend, range(40))
    assert found.tolist() == expected.tolist()
    found, expected = both(backend, [4])
    assert found.tolist() == expected.tolist()


@each_isa
@each_screened
def test_a_bias_decides_with_the_weights(precision: Precision, isa: str) -> None:
    backend = head_on(normal(40, HIDDEN), normal(500, HIDDEN, seed=1), precision, isa, normal(500, seed=2) * 30)
    found, expected = both(backend, range(40))
    assert found.tolist() == expected.tolist()
    assert len(set(found.tolist())) > 3


@each_isa
@each_screened
@pytest.mark.parametrize("best", [3, 40])
def test_rounding_that_misleads_as_far_as_it_can(best: int, precision: Precision, isa: str) -> None:
    """In 8 bits all weights of the best token lose almost half a unit, all of another gain it: it looks worse by all
    that the bounds allow."""
    unit = 2.0**-4  # what a largest weight of 127 units makes it
    steps = torch.arange(HIDDEN) % 15
    worse = (best + 5) % 64
    head = normal(64, HIDDEN) * 0.01
    head[best] = steps + 0.4375
    head[worse] = steps + 0.5625
    # All in all 0.125 for each weight; twelve whole steps leave the best token an eighth of one ahead.
    head[best, 1:13] += 1
    head[[best, worse], 0] = 127
    head[[best, worse]] *= unit
    backend = head_on(torch.ones(1, HIDDEN), head, precision, isa)
    found, expected = both(backend, [0])
    assert found.tolist() == expected.tolist() == [best]


@each_isa
@each_screened
@pytest.mark.parametrize("poison", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_has_no_best_token(poison: float, precision: Precision, isa: str) -> None:
    states = normal(6, HIDDEN)
    states[2, 50] = poison
    backend = head_on(states, normal(500, HIDDEN, seed=1), precision, isa)
    found, expected = both(backend, [0, 1])
    assert found.tolist() == expected.tolist()
    found, expected = both(backend, [2])
    assert found.tolist() == expected.tolist() == [-1]

    head = normal(500, HIDDEN, seed=1)
    head[333, 7] = poison
    found, expected = both(head_on(normal(6, HIDDEN), head, precision, isa), range(6))
    assert found.tolist() == expected.tolist()


@each_isa
def test_rows_are_asked_for_in_order_and_once(isa: str) -> None:
    backend = native(small_config(), "bf16", isa)
    storage = backend.allocate_cache(len(BLOCKS), 32)
    rows = Rows(random_tokens(5), 0, BLOCKS)
    for best, logits, reason in (([2, 1], [], "ascending"), ([5], [], "ascending"), ([1, 2], [0, 2], "both")):
        with pytest.raises(ValueError, match=reason):
            backend.forward(make_pass(rows, logit_rows=logits, best_rows=np.array(best, np.int32)), storage)
