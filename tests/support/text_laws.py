"""The law of whole texts: what an engine says, counted, against what the target's tables say it must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats
from toys import run_all, toy_sequence

from headstart.drafting.base import SpeculationParams
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.sampling.params import SamplingParams

CROWD = Limits(max_sequences=64, draft_rows=64 * 8, max_rows=1024)
"""Many sequences at once, each with a budget of 8 nodes."""

START = 0
"""The token that every text begins with."""


def random_table(vocab_size: int, seed: int, sharpness: float = 1.5) -> np.ndarray:
    """A first-order model: [last token, next token] probabilities."""
    logits = np.random.default_rng(seed).normal(size=(vocab_size, vocab_size)) * sharpness
    weights = np.exp(logits)
    return weights / weights.sum(1, keepdims=True)


def opposed_tables() -> tuple[np.ndarray, np.ndarray]:
    """A target and a draft over 4 tokens whose draws are often rejected, for tokens that the draft nearly drew.

    Noise shared between a draw and what replaces it shows in such a pair, and hardly in a random one.
    """
    target, draft = [0.05, 0.44, 0.16, 0.35], [0.63, 0.04, 0.09, 0.24]
    return tuple(np.stack([np.roll(law, last) for last in range(4)]) for law in (target, draft))


def text_law(table: np.ndarray, length: int) -> np.ndarray:
    """[vocab] * length: the probability of every text after START."""
    law = table[START]
    for _ in range(length - 1):
        law = law[..., None] * table
    return law


def sample_texts(
    engine: Engine,
    count: int,
    length: int,
    params: SamplingParams | None = None,
    speculation: SpeculationParams | None = None,
) -> list[tuple[int, ...]]:
    """Texts of ``length`` tokens after START, one seed each, decoded together as far as the engine's limits go."""
    params = replace(params or SamplingParams(), max_tokens=length)
    sequences = [
        toy_sequence(engine, [START], sequence_id=i, params=replace(params, seed=i), speculation=speculation)
        for i in range(count)
    ]
    return [tuple(output) for output in run_all(engine, sequences)]


def p_value(texts: Sequence[tuple[int, ...]], table: np.ndarray) -> float:
    """How likely texts of the table's law are to look as odd as these: as whole texts, or step by step.

    The smaller p of two G-tests, doubled.
    """
    length = len(texts[0])
    assert {len(text) for text in texts} == {length}
    whole = Counter(texts)
    law = text_law(table, length)
    by_text = _g_test([whole[text] for text in np.ndindex(law.shape)], law.ravel() * len(texts))
    # Of a first-order model, what follows each token is a sample of that token's row.
    steps = Counter(step for text in texts for step in zip((START, *text), text, strict=False))
    counts = np.array([[steps[last, token] for token in range(len(table))] for last in range(len(table))])
    by_step = _g_test(counts.ravel(), (table * counts.sum(1, keepdims=True)).ravel(), len(table) - 1)
    return min(1.0, 2 * min(by_text, by_step))


def _g_test(counts: Sequence[int] | np.ndarray, means: np.ndarray, fixed: int = 0) -> float:
    """p of counts with these means, all above 0, of which ``fixed`` + 1 sums are given; rare cells are pooled."""
    observed, expected = np.asarray(counts, dtype=float), means * (np.sum(counts) / means.sum())
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    return float(stats.power_divergence(observed, expected, ddof=fixed, lambda_="log-likelihood").pvalue)
