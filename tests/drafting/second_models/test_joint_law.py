"""The joint law of whole texts through the engine: 8 tokens, length 3, 512 cells."""

from __future__ import annotations

import numpy as np
import pytest
from model_toys import model_engine
from text_laws import CROWD, p_value, sample_texts
from toys import ToyBackend, table_logits

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams

VOCAB, LENGTH = 8, 3


def random_table(seed: int) -> np.ndarray:
    """A first-order model: [last token, next token] probabilities."""
    weights = np.exp(np.random.default_rng(seed).normal(size=(VOCAB, VOCAB)))
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.BLOCK])
@pytest.mark.parametrize("count", [3000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_all_512_texts_are_as_likely_as_the_target_says(rule: VerifyRule, count: int) -> None:
    target, draft = random_table(1), random_table(2)
    engine = model_engine(
        ToyBackend(VOCAB, table_logits(target)),
        "draft-model",
        {"small": ToyBackend(VOCAB, table_logits(draft))},
        limits=CROWD,
        model="small",
        draft_tokens=2,
    )
    texts = sample_texts(engine, count, LENGTH, speculation=SpeculationParams(verify=rule))
    assert p_value(texts, target) > 1e-4
    # The test must have the power to tell the draft's law from the target's.
    assert p_value(texts, draft) < 1e-12
