"""The audit passes what is right, and fails what is broken on purpose."""

from __future__ import annotations

import json

import pytest
import torch
from broken_parts import (
    Honest,
    Liar,
    Meddler,
    Pruner,
    ShapeBackend,
    verify_leniently,
    verify_with_the_drafts_noise,
)
from thinning import thorough_but
from toys import ToyBackend, hashed_logits

from headstart.sampling.params import SamplingParams
from headstart_lab.audit.audit_report import exhibits, to_json
from headstart_lab.audit.cases import cases
from headstart_lab.audit.goodness import Goodness, g_test
from headstart_lab.audit.joint_law import LawFindings, check_law, choose_tokens, compute_law
from headstart_lab.audit.rules import check_rules
from headstart_lab.audit.run import Audit
from headstart_lab.audit.texts import check_texts, decode_plainly
from headstart_lab.differences import Difference, Numerics, first_difference, numerics_of
from headstart_lab.workbench import Contender, Workbench

VOCAB = 12
EXACT, ROUNDED = Numerics(True, 1e-4), Numerics(False, 1e-4)
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4, 5, 4, 5, 4], [7] * 40, [2, 9]]
GREEDY = SamplingParams(temperature=0, seed=7, max_tokens=20)
FEW_CASES = list(cases())[:6]
NGRAM, BIGRAM = Contender.parse("ngram"), Contender.parse("bigram:sample=true")


def toy_bench(backend=None, batch=3) -> Workbench:
    backend = backend or ToyBackend(VOCAB, hashed_logits(VOCAB, order=2))
    return Workbench(backend, max_context=100, max_sequences=batch)


def of(drafter_class) -> Contender:
    return Contender(drafter_class.__name__, drafter_class)


def texts_of(contender, bench=None):
    bench = bench or toy_bench()
    return check_texts(bench, contender, decode_plainly(bench, Contender.parse("none"), PROMPTS, GREEDY))


class TestTexts:
    @pytest.mark.parametrize("contender", [Contender.parse("none"), NGRAM, BIGRAM, Contender.parse("recycling")])
    def test_right_drafters_pass_in_exact_numerics(self, contender):
        findings = texts_of(contender)
        assert not findings.faults(EXACT)
        assert findings.texts == 2 * len(PROMPTS)
        assert findings.tokens == 2 * 20 * len(PROMPTS)
        # One row for each greedy token: the root of a round, or an accepted guess.
        assert findings.rows == findings.equal_rows == 20 * len(PROMPTS)
        assert (findings.accepted > 0) == (contender.name != "none")

    def test_a_drafter_that_meddles_with_the_text_fails(self):
        findings = texts_of(of(Meddler))
        assert [place.index for _, place in findings.greedy_differences] == [2] * len(PROMPTS)
        assert findings.faults(EXACT)
        assert "of 8 texts differ" in findings.faults(ROUNDED)[0]

    def test_logits_that_depend_on_the_passs_shape_fail(self):
        backend = ShapeBackend(VOCAB, hashed_logits(VOCAB, order=2))
        backend.error = 3.0
        findings = texts_of(NGRAM, toy_bench(backend))
        assert findings.greedy_differences
        assert findings.faults(ROUNDED)

    def test_a_single_bit_fails_where_bits_are_promised(self):
        backend = ShapeBackend(VOCAB, hashed_logits(VOCAB, order=2))
        backend.error = 1e-6
        findings = texts_of(NGRAM, toy_bench(backend))
        assert not findings.differences
        assert 0 < findings.largest_row_difference < 1e-5
        assert not findings.faults(ROUNDED)
        assert "verified rows have other bits" in findings.faults(EXACT)[0]

    def test_rows_far_off_fail_though_no_greedy_text_differs(self):
        backend = ShapeBackend(VOCAB, lambda context: hashed_logits(VOCAB, order=2)(context).argsort().astype(float))
        backend.error = 0.4
        findings = texts_of(NGRAM, toy_bench(backend))
        assert not findings.greedy_differences
        assert "logits of verified rows are off" in findings.faults(ROUNDED)[-1]

    def test_a_float_tie_is_no_fault_where_passes_round(self):
        def nearly_tied(context):
            logits = hashed_logits(VOCAB, order=2)(context)
            logits[3], logits[4] = 20.0, 20.0 + 1e-5 * (1 if len(context) % 2 else -1)
            return logits

        backend = ShapeBackend(VOCAB, nearly_tied)
        backend.error = 1e-4
        findings = texts_of(NGRAM, toy_bench(backend))
        assert findings.greedy_differences
        assert findings.ties(ROUNDED) == len(findings.differences)
        assert not findings.faults(ROUNDED)
        assert findings.faults(EXACT)


class TestFirstDifference:
    def test_of_greedy_texts_it_is_the_top_two_gap(self):
        bench = toy_bench()
        plain = bench.sequence([1, 2], GREEDY)
        bench.decode(bench.open(Contender.parse("none")), plain)
        logits = torch.tensor(bench.backend.logits_of((1, 2, *plain.output[:4])), dtype=torch.float32)
        best = logits.topk(2)
        other = [*plain.output[:4], int(best.indices[1])]
        place = first_difference(bench, plain, other)
        assert (place.index, place.plain, place.other) == (4, plain.output[4], other[4])
        assert place.between_best_two
        assert place.gap == pytest.approx(float((best.values[0] - best.values[1]) / (logits.max() - logits.min())))

    def test_of_sampled_texts_the_noise_counts(self):
        bench = toy_bench()
        plain = bench.sequence([1, 2], SamplingParams(temperature=0.7, seed=3, max_tokens=30))
        bench.decode(bench.open(Contender.parse("none")), plain)
        for index in range(30):
            others = [
                first_difference(bench, plain, [*plain.output[:index], token])
                for token in range(VOCAB)
                if token != plain.output[index]
            ]
            # What was drawn is the best; exactly one other is the second.
            assert sum(place.between_best_two for place in others) == 1
            assert {place.plain for place in others} == {plain.output[index]}

    def test_a_text_that_ends_early(self):
        bench = toy_bench()
        plain = bench.sequence([1, 2], GREEDY)
        bench.decode(bench.open(Contender.parse("none")), plain)
        place = first_difference(bench, plain, plain.output[:5])
        assert (place.index, place.other) == (5, None)
        assert not place.is_tie(ROUNDED)

    def test_backends_that_round(self):
        backend = ToyBackend(VOCAB, hashed_logits(VOCAB))
        assert numerics_of(backend) == ROUNDED
        backend.name = "torch-bf16"
        assert numerics_of(backend).tie > 1e-3


class TestJointLaw:
    def test_it_is_the_product_of_the_targets_laws(self):
        bench = toy_bench()
        law = compute_law(bench, [1, 2], [0, 3, 5], 2, seed=1)
        assert sum(law.probabilities.values()) == pytest.approx(1)

        def chances(context):
            logits = torch.tensor(bench.backend.logits_of(context), dtype=torch.float32)[[0, 3, 5]].double()
            return dict(zip([0, 3, 5], logits.softmax(-1).tolist(), strict=True))

        for (first, second), probability in law.probabilities.items():
            assert probability == pytest.approx(chances((1, 2))[first] * chances((1, 2, first))[second])

    def test_tokens_of_the_prompt_come_first_and_structure_is_avoided(self):
        bench = toy_bench()
        tokens = choose_tokens(bench, [1, 2, 1, 3, 1], 5, avoid={2})
        assert {1, 3} < set(tokens)
        assert 2 not in tokens
        assert len(tokens) == 5
        assert len(choose_tokens(bench, [1], 99)) == VOCAB

    @pytest.mark.parametrize("contender", thorough_but([NGRAM], [Contender.parse("none"), NGRAM, BIGRAM, of(Honest)]))
    def test_right_drafters_pass(self, contender):
        found = self._check(contender, 800)
        assert all(each.goodness.p_value > 1e-4 for each in found)
        assert len(found) == (2 if contender.name in ("Honest", BIGRAM.name) else 1)

    @pytest.mark.parametrize("drafter", thorough_but([Liar], [Liar, Pruner]))
    def test_drafters_that_draw_from_another_law_than_they_say_fail(self, drafter):
        found = self._check(of(drafter), 800)
        assert any(each.goodness.p_value < 1e-6 for each in found)

    def _check(self, contender, samples):
        bench = toy_bench(batch=8)
        prompt = [1, 2, 3, 1, 2, 3, 1, 2]
        law = compute_law(bench, prompt, choose_tokens(bench, prompt, 6), 2, seed=11)
        return check_law(bench, contender, law, samples)


class TestRules:
    def test_the_rules_pass(self):
        findings = check_rules(toys=FEW_CASES)
        assert findings.passed
        assert findings.enumerated == sum(len(case.rules) for case in FEW_CASES)
        assert findings.largest_error < 1e-14
        assert findings.control_error > 0.01

    @pytest.mark.parametrize("mutant", [verify_leniently, verify_with_the_drafts_noise])
    def test_wrong_rules_fail(self, mutant):
        findings = check_rules(mutant, FEW_CASES)
        assert findings.broken
        assert not findings.passed
        assert not Audit(EXACT, findings).passed


@pytest.fixture(scope="module")
def rules():
    return check_rules(toys=FEW_CASES[:1])


class TestVerdict:
    def law(self, p_value, drafter="ngram", accepted=3):
        return LawFindings(drafter, "auto", Goodness(100, 5, 3.0, p_value, 0.1), 9, accepted, False)

    def test_one_line_for_a_pass(self, rules):
        audit = Audit(EXACT, rules, [texts_of(NGRAM)], [self.law(0.4)])
        assert audit.passed
        assert audit.verdict.startswith("PASS: 8 texts of 1 drafters (160 tokens)")
        assert "all 80 verified rows are bit-identical" in audit.verdict
        assert "\n" not in audit.verdict

    def test_one_line_for_a_failure(self, rules):
        audit = Audit(EXACT, rules, [texts_of(of(Meddler))], [self.law(1e-9)])
        assert not audit.passed
        assert audit.verdict.startswith("FAIL: Meddler: ")
        assert audit.verdict.endswith("and 1 more.")

    def test_many_law_tests_share_the_risk(self, rules):
        assert not Audit(EXACT, rules, laws=[self.law(5e-4)]).passed
        assert Audit(EXACT, rules, laws=[self.law(5e-4), *[self.law(0.5)] * 9]).passed

    def test_drafters_that_were_never_right_are_named(self, rules):
        audit = Audit(EXACT, rules, [], [self.law(0.5, accepted=0), self.law(0.5, "suffix"), self.law(0.5, "none", 0)])
        assert audit.idle == ["ngram"]

    def test_a_test_without_power_is_no_pass_of_the_law(self, rules):
        blind = LawFindings("suffix", "auto", Goodness(4, 1, 0.0, 1.0, 0.5), 9, 3, False)
        assert "not known: 4 of each are too few" in Audit(EXACT, rules, laws=[blind]).verdict
        mixed = Audit(EXACT, rules, laws=[self.law(0.4), blind])
        assert f"a law {mixed.detectable(self.law(0.4)):.2f} off would be found, but in 1 nothing" in mixed.verdict

    def test_what_is_unfinished_does_not_pass(self, rules):
        audit = Audit(EXACT, rules, [texts_of(NGRAM)], cut_short=True)
        assert not audit.passed
        assert audit.verdict.startswith("UNFINISHED, nothing wrong so far: ")
        assert Audit(EXACT, rules, [texts_of(of(Meddler))], cut_short=True).verdict.startswith("FAIL: ")

    def test_what_is_impossible_is_written_as_null(self, rules):
        law = LawFindings("ngram", "auto", g_test(["a", "z"], {"a": 1.0}), 9, 3, False)
        (written,) = json.loads(json.dumps(to_json(Audit(EXACT, rules, laws=[law]), {}), allow_nan=False))["laws"]
        assert (written["goodness"]["p_value"], written["goodness"]["statistic"]) == (0, None)

    def test_the_report_holds_everything(self, rules):
        audit = Audit(ROUNDED, rules, [texts_of(of(Meddler)), texts_of(NGRAM)], [self.law(0.4)], {"x": "why"})
        written = json.loads(json.dumps(to_json(audit, {"model": {"name": "toy"}}), allow_nan=False))
        assert written["passed"] is False
        assert written["verdict"] == audit.verdict
        assert written["texts"][0]["greedy_differences"][0]["index"] == 2
        assert written["laws"][0]["goodness"]["p_value"] == 0.4
        titles = [table.title for table in exhibits(audit)]
        assert titles[0] == "Faults"
        assert "Differences" in titles
        for table in exhibits(audit):
            assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_tie_is_between_the_best_two_and_near():
    assert Difference(0, 1, 2, 1e-5, True).is_tie(ROUNDED)
    assert not Difference(0, 1, 2, 1e-5, True).is_tie(EXACT)
    assert not Difference(0, 1, 2, 1e-5, False).is_tie(ROUNDED)
    assert not Difference(0, 1, 2, 1e-3, True).is_tie(ROUNDED)
