"""Lenience: lossy on purpose, within its bound, and never where it was not asked for."""

from __future__ import annotations

import math

import pytest
from law_checks import TOLERANCE

from headstart.sampling.noise import SequenceNoise
from headstart_lab.audit.cases import constant_model, draft_chain, draft_guesses, draft_tree, random_model
from headstart_lab.audit.oracle import largest_error, output_law, product_law, run_round

TARGET, DRAFT = random_model(3, 71), random_model(3, 72)
PROPOSERS = {
    "chain": draft_chain(DRAFT, 2),
    "tree": draft_tree(DRAFT, [2, 1]),
    "distinct": draft_tree(DRAFT, [2, 1], replaced=False, extras=[0]),
    "guesses": draft_guesses((0, 1), (1, 2), (2,)),
}


@pytest.mark.parametrize("propose", PROPOSERS.values(), ids=PROPOSERS)
def test_full_lenience_is_exact(propose):
    law = output_law(TARGET, propose, 3, lenience=1.0)
    assert largest_error(law.probs, product_law(TARGET, 3)) < TOLERANCE


@pytest.mark.parametrize("propose", PROPOSERS.values(), ids=PROPOSERS)
@pytest.mark.parametrize("lenience", [0.3, 0.7])
def test_no_sequence_is_said_more_often_than_the_bound(propose, lenience):
    law = output_law(TARGET, propose, 2, lenience=lenience)
    exact = product_law(TARGET, 2)
    assert sum(law.probs.values()) == pytest.approx(1)
    assert largest_error(law.probs, exact) > 0.01
    for tokens, probability in law.probs.items():
        assert probability <= exact[tokens] / lenience**2 + TOLERANCE
    first = output_law(TARGET, propose, 1, lenience=lenience).probs
    for tokens, probability in first.items():
        assert probability <= exact_first(tokens) / lenience + TOLERANCE


def exact_first(tokens) -> float:
    return float(TARGET(())[tokens[0]])


@pytest.mark.parametrize("propose", PROPOSERS.values(), ids=PROPOSERS)
def test_more_lenience_accepts_more(propose):
    accepted = [output_law(TARGET, propose, 3, lenience=lenience).accepted for lenience in (1.0, 0.6, 0.2)]
    assert accepted[0] < accepted[1] < accepted[2]


def test_a_lenient_draw_is_kept_as_the_appendix_says():
    p, q, lenience = TARGET(()), DRAFT(()), 0.5
    alpha = sum(min(float(p[token]) / lenience, float(q[token])) for token in range(3))
    law = output_law(TARGET, draft_chain(DRAFT, 1), 2, lenience=lenience)
    assert law.accepted == pytest.approx(alpha, abs=TOLERANCE)


def test_greedy_lenience_keeps_the_good_and_refuses_the_bad():
    target = constant_model(0.5, 0.3, 0.2)  # ratios to the best: 1, 0.6, 0.4
    noise = SequenceNoise(0)

    def said(lenience, *paths):
        return run_round(target, draft_guesses(*paths), noise, (), lenience=lenience, greedy=True)

    assert said(0.6, (1,)) == (1, 0)
    assert said(math.nextafter(0.6, 1), (1,)) == (0,)
    assert said(0.3, (2,), (1,)) == (1, 0)  # the better of two forgiven guesses
    assert said(0.3, (2,), (0, 1)) == (0, 1, 0)  # the argmax before any other
    assert said(1.0, (1,), (0, 0)) == (0, 0, 0)
    assert said(0.1) == (0,)
