"""Beam search against enumerations, and against a plain restatement of its rules."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from headstart.verification.beam import BeamRules, BeamSearch, EarlyStopping, Path, Row

VOCAB = 4
Law = dict[tuple[int, ...], Row]


def random_law(seed: int, depth: int, vocab: int = VOCAB) -> Law:
    """Log-probabilities after every path shorter than ``depth``."""
    rng = np.random.default_rng(seed)
    law = {}
    for length in range(depth):
        for path in product(range(vocab), repeat=length):
            logits = rng.normal(size=vocab) * 2
            law[path] = (logits - np.log(np.exp(logits).sum())).astype(np.float32)
    return law


def run(rules: BeamRules, law: Law) -> BeamSearch:
    search = BeamSearch(rules)
    while not search.done:
        assert search.step([law[tuple(path.tokens)] for path in search.live]) is not None
    return search


def found(search: BeamSearch) -> list[tuple[tuple[int, ...], float]]:
    return [(tuple(path.tokens), float(path.score)) for path in search.ended]


def score_of(law: Law, path: tuple[int, ...], penalty: float) -> float:
    total = np.float32(0)
    for place, token in enumerate(path):
        total = np.float32(law[path[:place]][token] + total)
    return float(np.float32(total / np.float32(float(len(path)) ** penalty)))


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_beams_enough_for_all_paths_find_the_best_of_all(penalty: float, seed: int) -> None:
    length, end = 4, 3
    law = random_law(seed, length)
    paths = [path for n in range(1, length) for path in product(range(3), repeat=n - 1)]
    whole = [(*path, end) for path in paths] + [
        path for path in product(range(VOCAB), repeat=length) if end not in path[:-1]
    ]
    width = VOCAB**length
    search = run(BeamRules(width, length, frozenset({end}), penalty, "never"), law)
    expected = sorted(((score_of(law, path, penalty), path) for path in set(whole)), key=lambda pair: -pair[0])
    assert [score for _, score in found(search)] == [score for score, _ in expected]
    assert {path for path, _ in found(search)} == set(whole)


def restated(law: Law, rules: BeamRules) -> list[tuple[tuple[int, ...], float]]:
    """The same search from whole sorted lists."""
    live: list[tuple[tuple[int, ...], np.float32]] = [((), np.float32(0))]
    ended: list[tuple[tuple[int, ...], float]] = []
    for length in range(1, rules.max_tokens + 1):
        grown = [
            (-float(np.float32(row + score)), beam, token, (*path, token))
            for beam, (path, score) in enumerate(live)
            for token, row in enumerate(law[path])
        ]
        grown.sort()
        power = np.float32(float(length) ** rules.length_penalty)
        going: list[tuple[tuple[int, ...], np.float32]] = []
        for place, (minus, _, token, path) in enumerate(grown):
            if token in rules.end_tokens or length == rules.max_tokens:
                if place < rules.width:
                    ended.append((path, float(np.float32(np.float32(-minus) / power))))
            elif len(going) < rules.width:
                going.append((path, np.float32(-minus)))
        ended = sorted(ended, key=lambda pair: -pair[1])[: rules.width]
        live = going
        if not live:
            break
        full = len(ended) == rules.width
        longest = rules.early_stopping == "never" and rules.length_penalty > 0
        best_length = rules.max_tokens if longest else length
        best = float(np.float32(live[0][1] / np.float32(float(best_length) ** rules.length_penalty)))
        if full and (rules.early_stopping is True or best <= ended[-1][1]):
            break
    return ended


@pytest.mark.parametrize("stopping", [False, True, "never"])
@pytest.mark.parametrize("penalty", [-0.6, 0.0, 1.0, 1.7])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_plain_restatement_agrees(width: int, penalty: float, stopping: EarlyStopping) -> None:
    stopped_early = 0
    for seed in range(12):
        law = random_law(seed, 6)
        rules = BeamRules(width, 6, frozenset({seed % VOCAB}), penalty, stopping)
        search = run(rules, law)
        assert found(search) == restated(law, rules)
        stopped_early += search.steps < 6
    assert stopped_early or stopping == "never"


@pytest.mark.parametrize("width", [2, 3])
def test_missing_rows_change_nothing_where_a_step_can_be_decided(width: int) -> None:
    decided = refused = 0
    for seed in range(60):
        law = random_law(seed, 6)
        rules = BeamRules(width, 6, frozenset({3}), 1.0, False)
        search, whole = BeamSearch(rules), BeamSearch(rules)
        rng = np.random.default_rng(seed)
        while not whole.done:
            rows: list[Row | None] = [law[tuple(path.tokens)] for path in whole.live]
            partial = [row if rng.random() < 0.6 else None for row in rows]
            before = [tuple(path.tokens) for path in search.live]
            if search.step(partial) is None:
                refused += 1
                assert [tuple(path.tokens) for path in search.live] == before
                assert search.step(rows) is not None
            else:
                decided += any(row is None for row in partial)
            whole.step(rows)
            for mine, other in ((search.live, whole.live), (search.ended, whole.ended)):
                assert [(path.tokens, path.score) for path in mine] == [(path.tokens, path.score) for path in other]
    assert decided
    assert refused


def test_nothing_is_decided_without_a_row_that_may_rise() -> None:
    law = random_law(1, 3)
    search = BeamSearch(BeamRules(2, 3))
    search.step([law[()]])
    search.live[1].score = np.float32(-1000)
    rows = [law[tuple(search.live[0].tokens)], None]
    assert search.step(rows, may_rise=True) is None
    assert search.step(rows) == []
    assert all(path.beam == 0 for path in search.live)


def test_ties_go_to_the_better_beam_and_the_lower_token() -> None:
    flat = np.full(VOCAB, -1, np.float32)
    search = BeamSearch(BeamRules(3, 4))
    search.step([flat])
    assert [path.tokens for path in search.live] == [[0], [1], [2]]
    search.step([flat] * 3)
    assert [path.tokens for path in search.live] == [[0, 0], [0, 1], [0, 2]]
    search.step([np.array([-3, -2, -2, -2], np.float32)] * 3)
    assert [path.tokens for path in search.live] == [[0, 0, 1], [0, 0, 2], [0, 0, 3]]


def test_of_equal_ended_paths_the_earlier_stays() -> None:
    search = BeamSearch(BeamRules(1, 9, frozenset({0}), length_penalty=0.0, early_stopping="never"))
    search.step([np.array([-1, -1, -9, -9], np.float32)])
    assert [path.tokens for path in search.ended] == [[0]]
    # The other beam stands as high, which is not higher.
    assert search.done


def test_impossible_tokens_are_never_searched() -> None:
    row = np.array([-1, -np.inf, -np.inf, -np.inf], np.float32)
    search = BeamSearch(BeamRules(3, 3))
    search.step([row])
    assert [path.tokens for path in search.live] == [[0]]
    nowhere = np.full(VOCAB, -np.inf, np.float32)
    search.step([nowhere])
    assert search.done
    assert search.ended == []


def test_an_end_behind_the_first_of_all_does_not_count() -> None:
    """It would be the third best continuation of two beams."""
    search = BeamSearch(BeamRules(2, 5, frozenset({2})))
    search.step([np.array([-1, -2, -3, -4], np.float32)])
    assert search.ended == []
    assert [path.tokens for path in search.live] == [[0], [1]]


def test_a_search_that_is_cut_ends_with_its_beams() -> None:
    law = random_law(5, 4)
    search = BeamSearch(BeamRules(2, 4))
    search.step([law[()]])
    live = [(path.tokens, path.score) for path in search.live]
    search.cut()
    assert search.done
    assert [(path.tokens, path.score) for path in search.ended] == live


def test_paths_know_their_tokens() -> None:
    root = Path(None, -1, 0, np.float32(0))
    path = Path(Path(root, 4, 0, np.float32(-1)), 2, 1, np.float32(-3))
    assert path.tokens == [4, 2]
    assert root.tokens == []
