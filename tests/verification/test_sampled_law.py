"""The law of what is said with real noise: transforms, drafts of every quality, several rounds in a row.

G-tests see what enumeration cannot: noise that is shared between uses, rounds or samples. 200,000 seeds from 0 on a
setting; each test is one family under Holm's procedure at 1e-3; total variation below 0.01 at every position.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from law_checks import (
    CrowdNoise,
    committed_model,
    goodness,
    holm_rejects,
    marginal,
    path_model,
    random_logits,
    sampled_outputs,
    total_variation,
)
from thinning import thorough_but

from headstart.common.enumerations import VerifyRule
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart_lab.audit.cases import draft_chain, draft_guesses, draft_tree, random_model
from headstart_lab.audit.oracle import product_law, run_round

VOCAB = 16
TRIALS = 200_000
FAMILY_WISE = 1e-3
TRANSFORMS = {
    "none": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.2},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.5},
    "bias, bans, min_tokens": {"logit_bias": {2: 1.5, 7: -math.inf}, "banned_token_ids": (4,), "min_tokens": 2},
    "banned sequences": {"banned_sequences": ((2, 5), (5, 2), (3, 3, 1), (9,))},
    "all": {
        "temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "presence_penalty": 0.5, "logit_bias": {3: 1.0},
    },
}  # fmt: skip
TARGET_LOGITS = random_logits(VOCAB, 1, scale=1.2)


def draft_logits(kind: str):
    if kind == "equal":
        return TARGET_LOGITS
    if kind == "opposite":
        return lambda tokens: -TARGET_LOGITS(tokens)
    return random_logits(VOCAB, 2)


def make_draft(kind: str, params: SamplingParams):
    if kind == "one-hot":
        params = SamplingParams(temperature=0)
    return path_model(draft_logits(kind), VOCAB, params)


def p_values(outputs, law) -> list[float]:
    """Each position's marginal, and the joint law."""
    length = outputs.shape[1]
    marginals = [goodness(outputs[:, position : position + 1], marginal(law, position)) for position in range(length)]
    return [*marginals, goodness(outputs, law)]


def check_transforms(kind: str, rule: VerifyRule, depth: int, transforms=TRANSFORMS) -> None:
    family = []
    for overrides in map(TRANSFORMS.get, transforms):
        params = SamplingParams(**overrides)
        target, draft = path_model(TARGET_LOGITS, VOCAB, params), make_draft(kind, params)
        law = product_law(committed_model(TARGET_LOGITS, VOCAB, params), depth + 1)
        outputs = sampled_outputs(target, draft_chain(draft, depth), depth + 1, TRIALS, rounds=1, rule=rule)
        family += p_values(outputs, law)
        for position in range(depth + 1):
            assert total_variation(outputs[:, position : position + 1], marginal(law, position)) < 0.01
    assert not holm_rejects(family, FAMILY_WISE), sorted(family)[:3]


KINDS = ["equal", "random", "opposite", "one-hot"]


@pytest.mark.parametrize("kind", thorough_but(["random"], KINDS))
def test_one_draw_then_a_correction_or_bonus(kind):
    check_transforms(kind, VerifyRule.AUTO, depth=1)


@pytest.mark.parametrize(("kind", "rule"), list(zip(KINDS, [VerifyRule.REJECTION, VerifyRule.BLOCK] * 2, strict=True)))
def test_every_position_of_a_chain(kind, rule):
    check_transforms(kind, rule, depth=2, transforms=["all"])


@pytest.mark.slow
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.BLOCK, VerifyRule.COUPLED])
@pytest.mark.parametrize("kind", KINDS)
def test_every_position_of_a_chain_under_every_transform(kind, rule):
    check_transforms(kind, rule, depth=2)


TARGET, DRAFT, OTHER = random_model(3, 81), random_model(3, 82), random_model(3, 83)


def draft_coupled(noise: SequenceNoise, root_position: int, tokens) -> DraftTree:
    """Gumbel coupling: the draft model's own tokens, drawn with the target's noise."""
    path: tuple[int, ...] = ()
    for depth in range(1, 4):
        path += (noise.draw_at(root_position + depth, 3, DRAFT(tokens + path).numpy()),)
    return DraftTree.chain(path)


@pytest.mark.parametrize(
    ("propose", "rule"),
    [
        pytest.param(draft_chain(DRAFT, 2), VerifyRule.BLOCK, id="block"),
        pytest.param(draft_chain(DRAFT, 2), VerifyRule.REJECTION, id="algorithm 1", marks=pytest.mark.thorough),
        pytest.param(draft_tree(DRAFT, [1, 2]), VerifyRule.BLOCK, id="tree"),
        pytest.param(draft_tree(DRAFT, [2]), VerifyRule.REJECTION, id="two draws", marks=pytest.mark.thorough),
        pytest.param(draft_tree(DRAFT, [3], replaced=False, extras=[1]), VerifyRule.AUTO, id="distinct and guesses"),
        pytest.param(draft_coupled, VerifyRule.AUTO, id="coupled"),
        pytest.param(draft_guesses((0, 1), (2,)), VerifyRule.AUTO, id="guesses", marks=pytest.mark.thorough),
    ],
)
def test_whole_sequences_follow_the_target_over_several_rounds(propose, rule):
    outputs = sampled_outputs(TARGET, propose, 3, TRIALS, rule=rule)
    assert goodness(outputs, product_law(TARGET, 3)) > FAMILY_WISE / 7


def test_samples_of_one_request_are_independent():
    said = [sampled_outputs(TARGET, draft_chain(DRAFT, 2), 2, TRIALS, noise=CrowdNoise(sample)) for sample in (0, 1)]
    single = product_law(TARGET, 2)
    law = {first + second: p * q for first, p in single.items() for second, q in single.items()}
    assert goodness(np.concatenate(said, axis=1), law) > FAMILY_WISE


@pytest.mark.parametrize("rule", list(VerifyRule))
def test_the_crowd_says_what_each_sequence_says_by_itself(rule):
    for propose in (draft_chain(DRAFT, 2), draft_tree(OTHER, [2], replaced=False, extras=[1]), draft_coupled):
        outputs = sampled_outputs(TARGET, propose, 4, 60, noise=CrowdNoise(sample=1), rule=rule)
        for seed in range(60):
            noise, tokens = SequenceNoise(seed, 1), ()
            while len(tokens) < 4:
                tokens += run_round(TARGET, propose, noise, tokens, rule=rule)
            assert tokens[:4] == tuple(outputs[seed])


def test_the_checks_see_a_law_that_is_slightly_wrong():
    outputs = sampled_outputs(TARGET, draft_guesses(), 1, TRIALS)
    law = product_law(TARGET, 1)
    assert goodness(outputs, law) > FAMILY_WISE
    assert total_variation(outputs, law) < 0.003
    tilted = {tokens: probability * (1.05 if tokens == (1,) else 1) for tokens, probability in law.items()}
    tilted = {tokens: probability / sum(tilted.values()) for tokens, probability in tilted.items()}
    assert goodness(outputs, tilted) < FAMILY_WISE
    assert goodness(np.array([[9]]), law) == 0.0
    assert holm_rejects([0.5, 1e-4, 0.9], FAMILY_WISE)
    assert not holm_rejects([0.5, 4e-4, 0.9], FAMILY_WISE)
