"""Typical acceptance: what it keeps by hand-made laws, that it is lossy, and that greedy requests lose nothing."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from headstart.drafting.base import SpeculationParams
from headstart.errors import ConfigError, RequestError
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import SequenceNoise
from headstart.verification.base import Verdict
from headstart.verification.typical import verify_typical
from headstart.verification.verify import verify
from headstart_lab.audit.cases import constant_model, draft_chain, draft_guesses, draft_tree, random_model
from headstart_lab.audit.oracle import ModelLaws, largest_error, output_law, product_law, run_round

SURE, UNSURE = (0.9, 0.06, 0.04), (0.4, 0.35, 0.25)


def judged(target, epsilon: float, *paths: tuple[int, ...], probe=None) -> Verdict:
    tree = DraftTree.from_paths(paths, 99)
    if probe is not None:
        tree = DraftTree(tree.tokens, tree.parents, probe=np.asarray(probe))
    noise = SequenceNoise(0)
    return verify(tree, ModelLaws(target, tree, noise, 0, (), False), noise, 0, typical=epsilon)


def entropy(law) -> float:
    return -sum(p * math.log(p) for p in law)


@pytest.mark.parametrize(
    ("law", "token", "epsilon", "kept"),
    [
        (SURE, 0, 0.09, True),
        (SURE, 1, 0.09, False),  # the threshold is 0.09: exp(-H) = 0.66 lets 0.3 exp(-H) be more
        (SURE, 1, 0.05, True),
        (UNSURE, 2, 0.2, True),  # 0.45 exp(-1.08) = 0.15, below epsilon
        (UNSURE, 2, 0.6, False),  # 0.77 exp(-1.08) = 0.26
        (UNSURE, 1, 0.6, True),
    ],
)
def test_a_guess_stays_where_the_formula_says_so(law, token: int, epsilon: float, kept: bool) -> None:
    threshold = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy(law)))
    assert (law[token] > threshold) == kept, "the table contradicts itself"
    assert (judged(constant_model(*law), epsilon, (token,)).path == (0,)) == kept


def test_the_threshold_itself_is_not_enough() -> None:
    assert judged(constant_model(0.75, 0.25), 0.25, (1,)).path == ()
    assert judged(constant_model(0.75, 0.25), math.nextafter(0.25, 0), (1,)).path == (0,)


def test_the_longest_plausible_path_wins_then_the_likeliest() -> None:
    target = constant_model(0.5, 0.3, 0.2)  # at 0.25 the threshold is 0.5 exp(-1.03) = 0.18; at 0.36: 0.21
    assert judged(target, 0.25, (0,), (2, 2)).path == (1, 2)
    assert judged(target, 0.25, (2, 2), (1, 1), (1, 2)).path == (2, 3)
    assert judged(target, 0.36, (0,), (2, 2)).path == (0,)
    assert judged(target, 0.36, (2, 0)).path == ()
    assert judged(target, 0.36).path == ()


def test_probe_nodes_are_never_accepted() -> None:
    assert judged(constant_model(0.5, 0.5), 0.09, (0, 1), probe=[False, True]).path == (0,)
    assert judged(constant_model(0.5, 0.5), 0.09, (0, 1), probe=[True, True]).path == ()


TARGET, DRAFT = random_model(3, 71), random_model(3, 72)
PROPOSERS = {
    "chain": draft_chain(DRAFT, 2),
    "distinct": draft_tree(DRAFT, [2, 1], replaced=False, extras=[0]),
    "guesses": draft_guesses((0, 1), (1, 2), (2,)),
}


@pytest.mark.parametrize("propose", PROPOSERS.values(), ids=PROPOSERS)
def test_enumeration_sees_that_it_is_lossy(propose) -> None:
    law = output_law(TARGET, propose, 3, verify=partial(verify, typical=0.09))
    assert sum(law.probs.values()) == pytest.approx(1)
    assert largest_error(law.probs, product_law(TARGET, 3)) > 0.01


@pytest.mark.parametrize("propose", PROPOSERS.values(), ids=PROPOSERS)
def test_greedy_requests_stay_exact(propose) -> None:
    for seed in range(4):
        said = [
            run_round(TARGET, propose, SequenceNoise(seed), (), greedy=True, verify=rule)
            for rule in (partial(verify, typical=0.09), verify)
        ]
        assert said[0] == said[1]


def test_a_request_names_one_lossy_rule_at_most() -> None:
    assert [
        SpeculationParams(**wish).lossy for wish in ({}, {"lenience": 1.0}, {"lenience": 0.5}, {"typical": 0.1})
    ] == [
        None,
        None,
        "lenience",
        "typical",
    ]
    with pytest.raises(RequestError, match="choose one"):
        SpeculationParams(typical=0.1, lenience=0.5)
    with pytest.raises(RequestError, match=r"typical .* \(0, 1\)"):
        SpeculationParams(typical=1.0)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, math.nan])
def test_a_senseless_epsilon_is_refused(epsilon: float) -> None:
    tree = DraftTree.empty()
    with pytest.raises(ConfigError, match=r"typical .* \(0, 1\)"):
        verify_typical(tree, ModelLaws(TARGET, tree, SequenceNoise(0), 0, (), False), epsilon)
