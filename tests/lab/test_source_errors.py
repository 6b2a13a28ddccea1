"""The sources' own errors, shown by enumeration: what they print is not the target's law, the correction is.

docs/coverage.md lists them. p is the target's law, q the draft's, over three tokens unless a test says otherwise.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from headstart.verification import algebra
from headstart_lab.theory import formulas as theory
from headstart_lab.theory.formulas import FloatArray, residual

P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.2, 0.2, 0.6])


def keep(p: FloatArray, q: FloatArray) -> FloatArray:
    """[token] probability that a draw is accepted; 1 where it is never drawn."""
    return np.minimum(1.0, np.divide(p, q, out=np.ones_like(p), where=q > 0))


def one_draw(p: FloatArray, q: FloatArray, correction: FloatArray) -> FloatArray:
    """Law of the token said after one draw from q, ``correction[x]`` being the law used when x is rejected."""
    rejected = q * (1 - keep(p, q))
    return q * keep(p, q) + rejected @ correction


def everywhere(law: FloatArray) -> FloatArray:
    """The same correction whatever was rejected."""
    return np.tile(law, (len(law), 1))


class TestOverview:
    """The overview."""

    def test_resampling_from_the_target_is_biased(self) -> None:
        """Its intuition says so ("resampled from the target distribution"), against its own derivation."""
        assert np.abs(one_draw(P, Q, everywhere(P)) - P).max() > 0.05
        np.testing.assert_allclose(one_draw(P, Q, everywhere(residual(P, Q))), P)

    def test_the_residual_needs_the_whole_draft_law(self) -> None:
        """Its first listing keeps only q(x) of the drawn token and subtracts that number from all of p."""
        scalar = np.maximum(P[None, :] - Q[:, None], 0)
        scalar = np.where(scalar.sum(1, keepdims=True) > 0, scalar / scalar.sum(1, keepdims=True).clip(1e-300), P)
        assert np.abs(one_draw(P, Q, scalar) - P).max() > 0.05


class TestEngineDesign:
    """The engine's design."""

    def test_its_acceptance_rate_is_not_alpha(self) -> None:
        """D9 divides accepted by K, guesses behind the first rejection included: alpha 0.8 reads as 0.54 at K = 5."""
        assert theory.expected_accepted(0.8, 5) / 5 == pytest.approx(0.538, abs=1e-3)
        # "below 50 % take a smaller K" would act on this pair, whose best draft length is longer
        assert theory.expected_accepted(0.77, 5) / 5 < 0.5
        assert theory.best_gamma(0.77, 0.02) > 5


class TestPaper:
    """The paper."""

    def test_greedy_lenience_must_ask_for_at_least(self) -> None:
        """A.5 prints p(x) <= l max(p), which rejects the argmax and keeps the unlikely."""
        likely, even, unlikely = 0.6, 0.3, 0.1
        printed = [p <= 0.5 * likely for p in (likely, even, unlikely)]
        meant = [p >= 0.5 * likely for p in (likely, even, unlikely)]
        assert printed == [False, True, True]
        assert meant == [True, True, False]
        # only so is l = 1 plain greedy decoding, as its printed alpha (0.75, table 3's) says
        assert [p >= 1.0 * likely for p in (likely, even, unlikely)] == [True, False, False]

    def test_a_token_without_mass_must_not_pass_at_zero(self) -> None:
        """Algorithm 1 rejects at r > p/q: a uniform draw of exactly 0, which floats can be, would pass p = 0."""
        assert not 0.0 > 0.0 / 0.6
        assert not algebra.accepts(0.0, 0.0, 0.6)


class TestIterativeNote:
    """The note on iterative and tree verification."""

    def test_the_rejected_draw_must_not_be_returned(self) -> None:
        """Section 1.1, step 7 returns x_1 ... x_n with x_n rejected: the first token then follows q."""
        printed = Q * keep(P, Q) + Q * (1 - keep(P, Q))
        assert np.abs(printed - P).max() > 0.1
        np.testing.assert_allclose(one_draw(P, Q, everywhere(residual(P, Q))), P)

    def test_greedy_appendix_returns_the_mismatch_too(self) -> None:
        """Appendix A: chain step 4 keeps the mismatched x_n, tree step 4 appends nu.x (already said) for nu.y."""
        after = {(): 1, (0,): 2, (1,): 0}  # what the target says after each prefix
        guesses = (0,)
        wrong_at = next(t for t, x in enumerate(guesses) if x != after[guesses[:t]])
        printed = (*guesses[: wrong_at + 1], after[guesses[: wrong_at + 1]])
        right = (*guesses[:wrong_at], after[guesses[:wrong_at]])
        assert printed == (0, 2)
        assert right == (1,)

    def test_a_draw_is_checked_against_the_law_it_came_from(self) -> None:
        """SpecInfer's nodes hold q after themselves, yet step 4(a)i checks child gamma with gamma.q."""
        after_child = np.array([[0.1, 0.1, 0.8], [0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])  # q after each first token
        printed = np.zeros(3)
        for token in range(3):
            own = after_child[token]
            passes = min(1.0, P[token] / own[token])
            printed[token] += Q[token] * passes
            printed += Q[token] * (1 - passes) * residual(P, own)
        assert np.abs(printed - P).max() > 0.05

    @staticmethod
    def two_draws(p: FloatArray, q: FloatArray, merge: bool) -> FloatArray:
        """Law of the token said after two draws from q; ``merge``: equal draws are checked once, as one child."""
        law = np.zeros(len(p))
        first, left = keep(p, q), residual(p, q)
        second, rest = keep(left, q), residual(left, q)
        for a, b in itertools.product(range(len(p)), repeat=2):
            mass = q[a] * q[b]
            law[a] += mass * first[a]
            mass *= 1 - first[a]
            if merge and a == b:
                law += mass * left
            else:
                law[b] += mass * second[b]
                law += mass * (1 - second[b]) * rest
        return law

    def test_equal_draws_must_stay_two_draws(self) -> None:
        """A prefix tree merges equal draws into one child; checked once, they bias the output from three tokens on."""
        rng = np.random.default_rng(0)
        worst = 0.0
        for _ in range(300):
            p, q = rng.dirichlet(np.full(3, 0.3), size=2)
            np.testing.assert_allclose(self.two_draws(p, q, merge=False), p, atol=1e-12)
            worst = max(worst, float(np.abs(self.two_draws(p, q, merge=True) - p).max()))
        assert worst > 0.1

    def test_merged_draws_go_unnoticed_with_two_tokens(self) -> None:
        rng = np.random.default_rng(1)
        for _ in range(100):
            p, q = rng.dirichlet(np.ones(2), size=2)
            np.testing.assert_allclose(self.two_draws(p, q, merge=True), p, atol=1e-12)


class TestNgramChapter:
    """The chapter on n-grams; its expectations are held in test_theory."""

    def test_counts_are_draft_probabilities_only_of_draws(self) -> None:
        """It would use the counts as q for drafts that are the argmax: biased, unless the draft is drawn from them."""
        counts, best = Q, 2
        passes = min(1.0, P[best] / counts[best])
        as_proposed = (1 - passes) * residual(P, counts)
        as_proposed[best] += passes
        assert np.abs(as_proposed - P).max() > 0.1
        point_mass = np.eye(3)[best]
        np.testing.assert_allclose(one_draw(P, point_mass, everywhere(residual(P, point_mass))), P)
