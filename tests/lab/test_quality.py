"""The quality of one model against another, where the truth can be computed by hand."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from toys import ToyBackend, repeating_logits, table_logits

from headstart.errors import ConfigError
from headstart_lab.quality.passages import read_passages, windows
from headstart_lab.quality.quality_report import exhibits, to_json
from headstart_lab.quality.run import GreedyPair, Quality, TextFigures, answer_greedily, read_texts
from headstart_lab.workbench import Workbench

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.25, 0.25, 0.5]])
Q = np.array([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.25, 0.25, 0.5]])
TEXT = [0, 1, 1, 2, 0, 2, 2, 1, 0]


def bench(table: np.ndarray) -> Workbench:
    return Workbench(ToyBackend(len(table), table_logits(table)), max_context=64)


def figures(loss: list[float], reference: list[float], same: list[bool] | None = None) -> TextFigures:
    return TextFigures(
        np.array(reference), np.array(loss), np.abs(np.array(loss)), np.array(same or [True] * len(loss))
    )


class TestTexts:
    def test_a_uniform_law_is_as_perplexed_as_its_vocabulary_is_large(self):
        uniform = bench(np.full((7, 7), 1 / 7))
        found = read_texts(uniform, uniform, [[0, 3, 6, 2]])
        assert found.perplexity == pytest.approx(7)
        assert found.reference_perplexity == pytest.approx(7)

    def test_a_model_is_like_itself(self):
        found = read_texts(bench(P), bench(P), [TEXT])
        assert found.mean_divergence == found.divergence_at(1.0) == 0
        assert (found.perplexity_ratio, found.ratio_error, found.agreement) == (1, 0, 1)

    def test_figures_are_those_of_the_laws(self):
        pieces = windows([TEXT, [2, 2, 1]], 4)
        found = read_texts(bench(P), bench(Q), pieces)
        pairs = [*pairwise(TEXT), (2, 2), (2, 1)]
        assert found.reference_loss == pytest.approx([-math.log(P[a, b]) for a, b in pairs], abs=1e-6)
        assert found.loss == pytest.approx([-math.log(Q[a, b]) for a, b in pairs], abs=1e-6)
        divergences = (P * np.log(P / Q)).sum(axis=1)
        assert found.divergence == pytest.approx([divergences[a] for a, _ in pairs], abs=1e-6)
        assert found.same_best.tolist() == [a != 1 for a, _ in pairs]

    def test_the_divergence_is_the_references(self):
        there, back = (read_texts(bench(a), bench(b), [TEXT]).mean_divergence for a, b in ((P, Q), (Q, P)))
        assert there != pytest.approx(back, rel=0.01)

    def test_what_the_reference_never_says_costs_nothing(self):
        certain = np.array([[1.0, 0.0], [0.0, 1.0]])
        even = np.full((2, 2), 0.5)
        assert read_texts(bench(certain), bench(even), [[0, 0, 0]]).divergence == pytest.approx([math.log(2)] * 2)

    def test_a_model_that_computes_nonsense_is_no_good_one(self):
        broken = Workbench(ToyBackend(3, lambda _: np.full(3, np.nan)), max_context=64)
        assert math.isnan(read_texts(bench(P), broken, [TEXT]).mean_divergence)

    def test_the_ratios_error_is_that_of_paired_differences(self):
        found = figures([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
        assert (found.perplexity_ratio, found.ratio_error) == (pytest.approx(math.exp(0.5)), 0)
        found = figures([1.0, 1.0], [0.8, 1.2])
        assert found.perplexity_ratio == pytest.approx(1)
        assert found.ratio_error == pytest.approx(0.2)

    def test_progress_counts_every_predicted_token(self):
        told: list[int] = []
        read_texts(bench(P), bench(Q), windows([TEXT], 3), told.append)
        assert sum(told) == len(TEXT) - 1


class TestWindows:
    def test_each_token_but_a_texts_first_is_predicted_once(self):
        for length in (2, 3, 5, 100):
            pieces = windows([range(10), range(20, 23), [7]], length)
            assert max(map(len, pieces)) <= length
            assert [token for piece in pieces for token in piece[1:]] == [*range(1, 10), 21, 22]


class TestGreedyAnswers:
    def test_where_answers_part(self):
        assert GreedyPair.of("a", [1, 2, 3], [1, 2, 4]) == GreedyPair("a", 3, 2, False)
        assert GreedyPair.of("a", [1, 2, 3], [1, 2]) == GreedyPair("a", 3, 2, False)
        assert GreedyPair.of("a", [1, 2], [1, 2, 3]) == GreedyPair("a", 2, 2, False)
        assert GreedyPair.of("a", [1, 2], [1, 2]) == GreedyPair("a", 2, 2, True)

    def test_answers_are_the_models_own(self):
        two = Workbench(ToyBackend(5, repeating_logits(5, [1, 2])), max_context=64)
        told: list[int] = []
        assert list(answer_greedily(two, [[1], [1, 2]], 4, told.append)) == [[2, 1, 2, 1], [1, 2, 1, 2]]
        assert told == [4, 4]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("divergence", "words"),
        [
            (1e-4, "is as good as bf16"),
            (5e-3, "is close to bf16"),
            (0.05, "is noticeably different from bf16"),
            (0.5, "is another model than bf16"),
            (math.nan, "is another model than bf16"),
        ],
    )
    def test_words_follow_the_mean_divergence(self, divergence, words):
        texts = TextFigures(np.ones(3), np.ones(3), np.full(3, divergence), np.ones(3, bool))
        assert Quality("int8", "bf16", "toy", 1, texts, ()).verdict.startswith(f"int8 {words}: perplexity 2.72")

    def test_a_report_says_it_all(self):
        pairs = (GreedyPair("a", 4, 4, True), GreedyPair("b", 4, 1, False))
        result = Quality("int8", "bf16", "toy", 10**6, figures([1.0, 2.0], [1.0, 1.5], [True, False]), pairs)
        assert (result.mean_shared, result.mean_tokens, result.equal_answers) == (2.5, 4, 1)
        written = json.loads(json.dumps(to_json([result], {"settings": {}}, {"fp32": "why"}), allow_nan=False))
        (row,) = written["precisions"]
        assert (row["same_best_token"], row["greedy_equal"], row["greedy_mean_shared"]) == (0.5, 1, 2.5)
        assert row["verdict"] == written["verdicts"][0] == result.verdict
        shown = [cell for table in exhibits([result], {"fp32": "why"}) for row in table.texts() for cell in row]
        for expected in ("bf16 (reference)", "50.00%", "1 of 2", "why"):
            assert expected in shown


class TestPassages:
    def test_those_of_the_package_are_some_pages(self):
        passages = read_passages()
        assert len(passages) == len(set(passages)) == 9
        assert 1000 < sum(len(passage.split()) for passage in passages) < 2000

    def test_a_text_file_is_one_text(self, tmp_path):
        path = tmp_path / "notes.txt"
        path.write_text("One.\n\nTwo.\n", encoding="utf-8")
        assert read_passages(path) == ["One.\n\nTwo.\n"]

    def test_a_line_is_one_text(self, tmp_path):
        path = tmp_path / "texts.jsonl"
        lines = [{"text": "A", "prompt": "no"}, {"turns": ["B", "C"]}, {"question": "D"}]
        path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        assert read_passages(path) == ["A", "B\n\nC", "D"]

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.txt", b" \n", "is empty"),
            ("a.txt", b"\xff", r"cannot be read as UTF-8 \(invalid start byte at byte 0\)\.$"),
            ("a.txt", None, "cannot be read"),
            ("a.jsonl", None, "cannot be read"),
            ("a.jsonl", b"", "is empty"),
            ("a.jsonl", b"{", "line 1 .* is not JSON"),
            ("a.jsonl", b'{"id": 1}', "line 1 .* nothing to answer"),
        ],
    )
    def test_what_holds_no_text_is_refused(self, tmp_path, name, content, message):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            read_passages(path)
