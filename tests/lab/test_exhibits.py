"""Figures and tables hold what the formulas give."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headstart_charts.page import Table
from headstart_lab.theory import exhibits, published
from headstart_lab.theory import formulas as theory


def column(table: Table, name: str) -> list[object]:
    return [row[table.columns.index(name)] for row in table.rows]


def values(table: Table) -> dict[object, object]:
    return {row[0]: row[1] for row in table.rows}


def test_figure_2() -> None:
    figure = exhibits.figure_2((0.8, 5))
    curves = {curve.label: dict(zip(curve.x, curve.y, strict=True)) for curve in figure.curves}
    assert curves["γ = 10"][0.9] == pytest.approx(6.86, abs=0.005)  # table 1's last row
    assert curves["γ = ∞ (oracle)"][0.5] == 2
    assert curves["γ = ∞ (oracle)"][1.0] == math.inf
    assert [(mark.x, mark.y) for mark in figure.marks] == [(0.8, theory.expected_tokens(0.8, 5))]
    assert exhibits.figure_2().marks == ()


def test_figure_3_rises_with_acceptance_and_falls_with_cost() -> None:
    figure = exhibits.figure_3((0.7, 0.05))
    for curve in figure.curves:
        assert list(curve.y) == sorted(curve.y)
    for cheap, dear in zip(figure.curves, figure.curves[1:], strict=False):
        assert all(a >= b for a, b in zip(cheap.y, dear.y, strict=True))
    assert figure.marks[0].y == 6


def test_figure_4_trades_operations_for_speed() -> None:
    curves = {curve.label: curve for curve in exhibits.figure_4().curves}
    for gamma in (3, 5, 10):
        speed, operations = curves[f"speed, γ = {gamma}"], curves[f"operations, γ = {gamma}"]
        assert operations.dashed
        # with free drafts, speed times operations per token is the rows of a pass
        assert [s * o for s, o in zip(speed.y, operations.y, strict=True)] == pytest.approx([gamma + 1] * 101)


def test_printed_tables_round_to_print() -> None:
    table = exhibits.table_1()
    for name in ("operations", "speed"):
        rounded = [round(float(value), 2) for value in column(table, name)]  # type: ignore[arg-type]
        assert rounded == column(table, f"{name}, printed")
    assert len(exhibits.table_4().rows) == len(published.TABLE_4)
    assert len(exhibits.lenience().rows) == len(published.LENIENCE)


def test_oracle_notes_hold() -> None:
    ratios = [float(value) for value in column(exhibits.oracle(), "ratio")]  # type: ignore[arg-type]
    assert all(1 <= ratio < 1.6 for ratio in ratios)


def test_ngram_shows_printed_and_right() -> None:
    table = exhibits.ngram()
    assert column(table, "accepted, printed") == [0.94, 2.05, 3.28]
    assert column(table, "accepted") == pytest.approx([0.9375, 1.7731, 3.0951])


def test_trees_are_worth_more_than_chains() -> None:
    table = exhibits.draft_trees((0.6, 0.2))
    chain, tree = column(table, "chain"), column(table, "best tree")
    assert chain[0] == tree[0]
    assert tree[-1] > chain[-1]  # type: ignore[operator]
    assert column(exhibits.draft_trees((0.7,)), "best tree") == pytest.approx(
        column(exhibits.draft_trees((0.7,)), "chain")
    )


def test_own_point() -> None:
    table = values(exhibits.own_point(0.8, 5, 0.05, 0.1))
    assert table["speed-up (Theorem 3.8)"] == theory.walltime_improvement(0.8, 5, 0.05)
    assert table["operations (Theorem 3.11)"] == theory.operations_increase(0.8, 5, 0.1)
    assert table["best γ (section 3.5)"] == theory.best_gamma(0.8, 0.05)
    assert table["guaranteed at the best γ (Corollary 3.9)"] == pytest.approx(1.8 / 1.05)


def test_own_point_without_hope_or_without_limit() -> None:
    hopeless = values(exhibits.own_point(0.1, 5, 0.3, 0.3))
    assert hopeless["does some γ beat plain decoding (Corollary 3.9)"] == "no"
    assert hopeless["best γ (section 3.5)"] == 0
    assert "guaranteed at the best γ (Corollary 3.9)" not in hopeless
    free = values(exhibits.own_point(0.999, 5, 0.0, 0.0))
    assert free["best γ (section 3.5)"] == "the longer the better"


def test_own_laws() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    table = values(exhibits.own_laws(p, q, lenience=0.5, draws=2, gamma=4))
    assert table["α = Σ min(p, q) (Corollary 3.6)"] == pytest.approx(0.7)
    assert table["D_LK, total variation (Definition 3.2)"] == pytest.approx(0.3)
    assert table["lenience 0.5, lossy (A.5)"] == pytest.approx(0.2 + 0.3 + 0.4)
    assert table["tokens per round, token by token, γ = 4"] == pytest.approx(theory.expected_tokens(0.7, 4))
