"""The law of every rule, enumerated: what is said is what the target would have said."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from law_checks import TOLERANCE, oracle_error

from headstart.common.enumerations import VerifyRule
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification.base import Verdict
from headstart_lab.audit.cases import (
    Case,
    cases,
    constant_model,
    draft_chain,
    draft_chains,
    draft_guesses,
    draft_tree,
    one_hot_model,
    random_model,
)
from headstart_lab.audit.oracle import (
    Branches,
    EnumeratedNoise,
    NoiseReusedError,
    enumerate_runs,
    largest_error,
    output_law,
    product_law,
)

CASES = [pytest.param(case, rule, id=f"{case.name}: {rule.value}") for case in cases() for rule in case.rules]


@pytest.mark.parametrize(("case", "rule"), CASES)
def test_a_round_says_what_the_target_would(case, rule):
    assert oracle_error(case, rule) < TOLERANCE


TARGET, DRAFT, OTHER = random_model(3, 31), random_model(3, 32), random_model(3, 33, zeros=1)


@pytest.mark.parametrize(
    ("propose", "rule", "rounds"),
    [
        (draft_chain(DRAFT, 2), VerifyRule.BLOCK, 3),
        (draft_chain(DRAFT, 2), VerifyRule.REJECTION, 3),
        (draft_chain(DRAFT, 2, stop=lambda path: path[-1] == 1), VerifyRule.BLOCK, 3),
        (draft_chain(DRAFT, 2), VerifyRule.COUPLED, 4),
        (draft_tree(DRAFT, [2]), VerifyRule.AUTO, 3),
        (draft_tree(OTHER, [2], replaced=False, extras=[0]), VerifyRule.AUTO, 3),
        (draft_guesses((0, 1), (2,)), VerifyRule.AUTO, 4),
    ],
)
def test_rounds_in_a_row_say_what_the_target_would(propose, rule, rounds):
    assert oracle_error(Case("", TARGET, propose, (), 4), rule, rounds=rounds) < TOLERANCE


@pytest.mark.parametrize(
    "propose",
    [
        draft_chains([DRAFT, OTHER], 3),
        draft_tree(DRAFT, [2, 1, 1], extras=[1]),
        draft_tree(DRAFT, [1, 2, 1], replaced=False),
    ],
)
def test_deep_trees(propose):
    assert oracle_error(Case("", TARGET, propose, (), 4), VerifyRule.AUTO) < TOLERANCE


@pytest.mark.parametrize("rule", list(VerifyRule))
@pytest.mark.parametrize(
    "propose",
    [
        draft_chain(DRAFT, 3),
        draft_tree(DRAFT, [2, 2]),
        draft_tree(DRAFT, [2, 1], replaced=False, extras=[0, 1]),
        draft_guesses((0, 1, 2), (1, 1), (2,)),
    ],
)
def test_greedy_requests_get_the_argmax_of_every_step(rule, propose):
    expected: tuple[int, ...] = ()
    for _ in range(4):
        expected += (int(TARGET(expected).argmax()),)
    law = output_law(TARGET, propose, 4, rounds=4, rule=rule, greedy=True).probs
    assert law == pytest.approx({expected: 1.0})


def test_a_chain_accepts_as_the_papers_formula_says():
    target, draft = constant_model(0.5, 0.3, 0.2), constant_model(0.2, 0.3, 0.5)
    alpha = 0.2 + 0.3 + 0.2
    for depth in (1, 2, 3):
        law = output_law(target, draft_chain(draft, depth), depth + 1, rule=VerifyRule.REJECTION)
        assert law.accepted + 1 == pytest.approx((1 - alpha ** (depth + 1)) / (1 - alpha), abs=TOLERANCE)


def expected_weights(target, draft, depth: int) -> float:
    """The sum over i of E_q[w_i]: block verification's expected accepted length."""
    total = 0.0
    for path in itertools.product(range(3), repeat=depth):
        weight = chance = 1.0
        for i, token in enumerate(path):
            p, q = float(target(path[:i])[token]), float(draft(path[:i])[token])
            chance *= q
            weight = min(1.0, weight * p / q) if q else 0.0
            total += chance * weight / 3 ** (depth - 1 - i)
    return total


@pytest.mark.parametrize("seed", range(40, 46))
def test_block_verification_accepts_its_weights_and_never_less_than_algorithm_1(seed):
    target, draft = random_model(3, seed), random_model(3, seed + 100)
    for depth in (1, 2, 3):
        block = output_law(target, draft_chain(draft, depth), depth + 1, rule=VerifyRule.BLOCK).accepted
        tokenwise = output_law(target, draft_chain(draft, depth), depth + 1, rule=VerifyRule.REJECTION).accepted
        assert block == pytest.approx(expected_weights(target, draft, depth), abs=TOLERANCE)
        assert block >= tokenwise - TOLERANCE
        if depth == 1:
            assert block == pytest.approx(tokenwise, abs=TOLERANCE)


def test_auto_is_block_on_chains():
    chain = draft_chain(DRAFT, 3)
    accepted = {rule: output_law(TARGET, chain, 4, rule=rule).accepted for rule in VerifyRule}
    assert accepted[VerifyRule.AUTO] == accepted[VerifyRule.BLOCK] > accepted[VerifyRule.REJECTION]
    assert accepted[VerifyRule.COUPLED] < accepted[VerifyRule.REJECTION]


def test_block_verification_serves_the_single_stretches_of_a_tree():
    chains = draft_chains([DRAFT, OTHER], 3)
    block, tokenwise = (
        output_law(TARGET, chains, 4, rule=rule).accepted for rule in (VerifyRule.BLOCK, VerifyRule.REJECTION)
    )
    assert block > tokenwise + 1e-4


def test_several_draws_accept_as_their_formula_says():
    p, q = TARGET(()), DRAFT(())
    rejected = 1.0
    for draws in (1, 2, 3):
        rejected *= 1 - float(torch.minimum(p, q).sum())
        p = (p - q).clamp(min=0) / (p - q).clamp(min=0).sum()
        law = output_law(TARGET, draft_tree(DRAFT, [draws]), 2, rule=VerifyRule.AUTO)
        assert law.accepted == pytest.approx(1 - rejected, abs=TOLERANCE)


@pytest.mark.parametrize("seed", range(50, 60))
def test_draws_without_replacement_accept_no_less(seed):
    target, draft = random_model(4, seed), random_model(4, seed + 100)
    distinct = output_law(target, draft_tree(draft, [2], replaced=False), 2).accepted
    independent = output_law(target, draft_tree(draft, [2]), 2).accepted
    assert distinct >= independent - TOLERANCE


def test_guesses_are_accepted_with_exactly_their_target_probability():
    paths = [(0, 1, 2), (0, 0), (2,)]
    nodes = {path[:depth] for path in paths for depth in range(1, len(path) + 1)}
    reach = sum(math.prod(float(TARGET(node[:i])[node[i]]) for i in range(len(node))) for node in nodes)
    law = output_law(TARGET, draft_guesses(*paths), 4)
    assert law.accepted == pytest.approx(reach, abs=TOLERANCE)


def test_a_draft_that_cannot_be_right_is_never_accepted():
    target, draft = constant_model(0, 0, 1, 1), constant_model(1, 1, 0, 0)
    for propose in (draft_chain(draft, 2), draft_tree(draft, [3]), draft_tree(draft, [2], replaced=False)):
        assert output_law(target, propose, 3).accepted == 0


def test_equal_models_accept_everything():
    for rule in (VerifyRule.BLOCK, VerifyRule.REJECTION):
        assert output_law(DRAFT, draft_chain(DRAFT, 3), 4, rule=rule).accepted == pytest.approx(3, abs=TOLERANCE)
    model = one_hot_model(3, 7)
    assert output_law(model, draft_chain(model, 3), 4, rule=VerifyRule.COUPLED).accepted == 3


def test_enumeration_visits_every_branch_once():
    def run(branches: Branches) -> tuple[int, ...]:
        first = branches.choose((0.25, 0.0, 0.75))
        return (first,) if first == 0 else (first, branches.choose((0.5, 0.5)))

    assert list(enumerate_runs(run)) == [(0.25, (0,)), (0.375, (2, 0)), (0.375, (2, 1))]


def test_a_uniform_compared_twice_is_one_number():
    def run(branches: Branches) -> tuple[bool, bool, bool]:
        noise = EnumeratedNoise(branches)
        first = noise.uniform(Stream.ACCEPT, 0, 0) * 0.5 < 0.1  # below 0.2
        again = noise.uniform(Stream.ACCEPT, 0, 0) < 0.6
        other = noise.uniform(Stream.ACCEPT, 0, 1) < 0.5
        return first, again, other

    law: dict[tuple[bool, bool, bool], float] = {}
    for probability, result in enumerate_runs(run):
        law[result] = law.get(result, 0) + probability
    both = {True: 0.5, False: 0.5}
    expected = {
        (first, again, other): chance * both[other]
        for (first, again), chance in {(True, True): 0.2, (False, True): 0.4, (False, False): 0.4}.items()
        for other in both
    }
    assert law == pytest.approx(expected)


def test_a_draw_made_twice_from_one_key_is_an_error():
    def verify(tree, laws, noise, root_position, rule, lenience):
        noise.draw(Stream.RESIDUAL, 0, 0, laws.probs(-1))
        return Verdict((), noise.draw(Stream.RESIDUAL, 0, 0, laws.probs(-1)))

    with pytest.raises(NoiseReusedError, match="RESIDUAL noise of position 0, index 0"):
        output_law(TARGET, draft_guesses(), 1, verify=verify)


def test_enumerated_draws_have_the_law_of_sampled_ones():
    weights = torch.tensor([0.1, 0.6, 0.0, 0.3], dtype=torch.float64)
    law: dict[tuple[int, ...], float] = {}
    for probability, drawn in enumerate_runs(
        lambda branches: tuple(EnumeratedNoise(branches).draw_distinct(Stream.DRAFT, 0, 0, weights, 2))
    ):
        law[drawn] = law.get(drawn, 0) + probability
    sampled = [tuple(SequenceNoise(seed).draw_distinct(Stream.DRAFT, 0, 0, weights, 2)) for seed in range(2000)]
    frequencies = {pair: sampled.count(pair) / 2000 for pair in law}
    assert set(sampled) == set(law)
    assert sum(law.values()) == pytest.approx(1)
    np.testing.assert_allclose([frequencies[pair] for pair in law], list(law.values()), atol=0.05)


def test_errors_are_measured_over_both_supports():
    assert largest_error({(0,): 1.0}, {(1,): 1.0}) == 1.0
    assert sum(product_law(TARGET, 3).values()) == pytest.approx(1)


def test_compiled_code_decides_nothing_that_is_enumerated() -> None:
    row = np.zeros(4, dtype=np.float32)
    runs = list(enumerate_runs(lambda branches: EnumeratedNoise(branches).contenders(3, row, 1.0, -np.inf)))
    assert runs == [(1.0, None)]
