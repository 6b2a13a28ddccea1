"""The paper's figures and tables, and a reader's own point, computed by ``theory`` and ``trees``.

Each function returns a ``Figure`` or a ``Table``; how it is shown is the caller's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from headstart_charts.page import Cell, Table
from headstart_charts.plots import Curve, Figure, Mark
from headstart_lab.theory import formulas as theory
from headstart_lab.theory import published, trees
from headstart_lab.theory.formulas import FloatArray

_ALPHAS = [i / 100 for i in range(101)]
PAPER_GAMMAS = (1, 3, 5, 7, 10)
PAPER_COSTS = (0.01, 0.02, 0.05, 0.1)
"""The paper's text does not print the values of its figures; these span the range of its experiments."""
_LONGEST = 1024
"""A best draft length that reaches this has no bound worth naming."""
EXAMPLE_RANKS = (0.6, 0.15, 0.07, 0.04)
"""Acceptance of a drafter's first, second, ... guess: an example where the reader gives none."""


def figure_2(point: tuple[float, int] | None = None) -> Figure:
    """Expected tokens per round against alpha, for several gamma; ``point`` is a reader's (alpha, gamma)."""
    curves = [
        Curve(f"γ = {gamma}", _ALPHAS, [theory.expected_tokens(alpha, gamma) for alpha in _ALPHAS])
        for gamma in PAPER_GAMMAS
    ]
    curves.append(Curve("γ = ∞ (oracle)", _ALPHAS, [theory.oracle_tokens(alpha) for alpha in _ALPHAS], dashed=True))
    marks = () if point is None else (Mark(f"γ = {point[1]}", point[0], theory.expected_tokens(*point)),)
    return Figure(
        "Figure 2: expected tokens per round", "acceptance rate α", "tokens", tuple(curves), marks, y_max=11.0
    )


def figure_3(point: tuple[float, float] | None = None) -> Figure:
    """The draft length that maximises Theorem 3.8 against alpha, for several c; ``point`` is a reader's (alpha, c)."""
    curves = tuple(
        Curve(f"c = {c:g}", _ALPHAS, [*(float(theory.best_gamma(alpha, c)) for alpha in _ALPHAS[:-1]), math.inf])
        for c in PAPER_COSTS
    )
    marks = () if point is None else (Mark(f"c = {point[1]:g}", point[0], float(theory.best_gamma(*point))),)
    return Figure("Figure 3: best draft length", "acceptance rate α", "best γ", curves, marks, y_max=40.0, decimals=0)


def figure_4() -> Figure:
    """Speed-up (solid) and operations (dashed) against alpha for several gamma, c = c_hat = 0."""
    curves: list[Curve] = []
    for color, gamma in enumerate((3, 5, 10)):
        speed = [theory.walltime_improvement(alpha, gamma, 0.0) for alpha in _ALPHAS]
        operations = [theory.operations_increase(alpha, gamma, 0.0) for alpha in _ALPHAS]
        curves.append(Curve(f"speed, γ = {gamma}", _ALPHAS, speed, color=color))
        curves.append(Curve(f"operations, γ = {gamma}", _ALPHAS, operations, dashed=True, color=color))
    return Figure(
        "Figure 4: speed-up and operations",
        "acceptance rate α",
        "factor over plain decoding",
        tuple(curves),
        y_max=11.0,
    )


def table_1() -> Table:
    """Operations and speed for several (alpha, gamma), printed and computed."""
    rows = tuple(
        (
            row.alpha,
            row.gamma,
            row.operations,
            theory.operations_increase(row.alpha, row.gamma, 0.0),
            row.speed,
            theory.walltime_improvement(row.alpha, row.gamma, 0.0),
        )
        for row in published.TABLE_1
    )
    columns = ("α", "γ", "operations, printed", "operations", "speed, printed", "speed")
    return Table("Table 1: operations and speed, c = ĉ = 0", columns, rows, decimals=(1, 0, 2, 2, 2, 2))


def table_4() -> Table:
    """The paper's column EXP beside Theorem 3.8, and its measurement."""
    rows = tuple(
        (
            f"{row.task} {row.draft}",
            row.temperature,
            row.gamma,
            row.alpha,
            row.c,
            row.expected,
            theory.walltime_improvement(row.alpha, row.gamma, row.c),
            row.measured,
        )
        for row in published.TABLE_4
    )
    return Table(
        "Table 4: expected speed-up (Theorem 3.8)",
        ("task, draft", "T", "γ", "α", "c", "EXP, printed", "EXP", "EMP, printed"),
        rows,
        "2.35, 1.93 and 1.54 stand where 2.4, 2.0 and 1.6 are printed: within the rounding of the printed α and c.",
        decimals=(0, 0, 0, 2, 2, 1, 2, 1),
    )


def lenience() -> Table:
    """The speed-ups of appendix A.5 beside Theorem 3.8 at the printed gamma and at the best one."""
    rows = []
    for row in published.LENIENCE:
        best = theory.best_gamma(row.alpha, row.c)
        at_gamma = None if row.gamma is None else theory.walltime_improvement(row.alpha, row.gamma, row.c)
        rows.append(
            (
                f"T={row.temperature}, l={row.lenience:g}",
                row.alpha,
                row.gamma,
                row.improvement,
                at_gamma,
                best,
                theory.walltime_improvement(row.alpha, best, row.c),
            )
        )
    return Table(
        "Appendix A.5: lenience, c = 0.015",
        ("setting", "α", "γ", "speed-up, printed", "speed-up", "best γ", "speed-up at best γ"),
        tuple(rows),
        "At T=1 the paper names no γ, and no γ reaches its first three factors with the printed α and c.",
        decimals=(0, 2, 0, 1, 2, 0, 2),
    )


def oracle() -> Table:
    """What an oracle for gamma would add to the best fixed one (section 3.5)."""
    rows = []
    for c in PAPER_COSTS:
        for alpha in (0.5, 0.7, 0.8, 0.9, 0.95):
            best = theory.best_gamma(alpha, c)
            fixed, improvement = theory.walltime_improvement(alpha, best, c), theory.oracle_improvement(alpha, c)
            rows.append((c, alpha, best, fixed, improvement, improvement / fixed))
    return Table(
        "Section 3.5: an oracle for the draft length",
        ("c", "α", "best γ", "best fixed γ", "oracle", "ratio"),
        tuple(rows),
        "Accepted guesses are paid for: oracle = 1 / (1 − α + cα). The ratio stays below 1.6.",
    )


def ngram() -> Table:
    """The n-gram chapter's speedup analysis: as printed, its own formula evaluated, and the right values."""
    drafts, overhead = published.NGRAM_DRAFTS, published.NGRAM_OVERHEAD
    rows = []
    for row in published.NGRAM:
        accepted = theory.expected_accepted(row.alpha, drafts)
        rows.append(
            (
                row.alpha,
                row.accepted,
                theory.expected_accepted_as_printed(row.alpha, drafts),
                accepted,
                row.speedup,
                accepted + 1,
                row.speedup_with_overhead,
                (accepted + 1) / overhead,
            )
        )
    return Table(
        f"N-gram chapter: expected accepted guesses of {drafts}",
        (
            "α",
            "accepted, printed",
            "its formula",
            "accepted",
            "speed-up, printed",
            "speed-up",
            f"/ {overhead:g}, printed",
            f"/ {overhead:g}",
        ),
        tuple(rows),
        f"The last two: with a verification pass that costs {overhead:g} plain steps. The chapter's sum counts the "
        "case that all guesses are accepted twice.",
        decimals=(1, 2, 2, 2, 2, 2, 1, 2),
    )


def draft_trees(ranks: Sequence[float] = EXAMPLE_RANKS) -> Table:
    """Expected tokens of a chain and of the best tree with as many nodes, from acceptance by rank."""
    sizes = (1, 2, 4, 8, 16, 32, 64)
    tree = trees.best_first_tree(np.tile(np.array(ranks, dtype=np.float64), (sizes[-1], 1)), sizes[-1])
    rows: list[tuple[Cell, ...]] = []
    for size in sizes:
        part = tree.reach[:size]
        rows.append(
            (
                size,
                theory.expected_tokens(ranks[0], size),
                trees.expected_tokens_of_tree(part),
                int(tree.depths[:size].max(initial=0)),
                int((tree.depths[:size] == 1).sum()),
            )
        )
    return Table(
        "Draft trees: expected tokens by number of nodes",
        ("nodes", "chain", "best tree", "depth", "children of the root"),
        tuple(rows),
        f"Acceptance of the first, second, ... guess at every node: {', '.join(f'{rank:g}' for rank in ranks)}.",
    )


def own_point(alpha: float, gamma: int, c: float, c_hat: float) -> Table:
    """Everything the paper says about one (alpha, gamma, c)."""
    law = theory.token_count_law(alpha, gamma)
    rows: list[tuple[Cell, ...]] = [
        ("expected tokens per round (Eq. 1)", theory.expected_tokens(alpha, gamma)),
        ("speed-up (Theorem 3.8)", theory.walltime_improvement(alpha, gamma, c)),
        ("operations (Theorem 3.11)", theory.operations_increase(alpha, gamma, c_hat)),
        ("chance of 1 token, the least", float(law[0])),
        (f"chance of {gamma + 1} tokens, the most", float(law[-1])),
        ("does some γ beat plain decoding (Corollary 3.9)", "yes" if theory.can_improve(alpha, c) else "no"),
    ]
    if theory.can_improve(alpha, c):
        rows.append(("guaranteed at the best γ (Corollary 3.9)", theory.guaranteed_improvement(alpha, c)))
    best = theory.best_gamma(alpha, c, limit=_LONGEST)
    if best < _LONGEST:
        rows += [
            ("best γ (section 3.5)", best),
            ("speed-up at the best γ", theory.walltime_improvement(alpha, best, c)),
        ]
    else:
        rows.append(("best γ (section 3.5)", "the longer the better"))
    rows.append(("speed-up with an oracle for γ (section 3.5)", theory.oracle_improvement(alpha, c)))
    title = f"α = {alpha:g}, γ = {gamma}, c = {c:g}, ĉ = {c_hat:g}"
    return Table(title, ("quantity", "value"), tuple(rows), decimals=3)


def own_laws(p: FloatArray, q: FloatArray, lenience: float, draws: int, gamma: int) -> Table:
    """Acceptance of every verification rule for one target law p and draft law q, [vocab] each."""
    alpha = float(theory.acceptance(p, q))
    block = theory.block_expected_tokens(np.tile(p, (gamma, 1)), np.tile(q, (gamma, 1)))
    rows: list[tuple[Cell, ...]] = [
        ("D_LK, total variation (Definition 3.2)", float(theory.divergence(p, q))),
        ("α = Σ min(p, q) (Corollary 3.6)", alpha),
        ("rejection sampling (A.2)", float(theory.rejection_sampling_acceptance(p, q))),
        ("Gumbel coupling", theory.coupled_acceptance(p, q)),
        (f"{draws} independent draws", theory.draws_acceptance(p, [q] * draws)),
        (f"{draws} draws without replacement", theory.draws_without_replacement_acceptance(p, q, draws)),
        (f"lenience {lenience:g}, lossy (A.5)", float(theory.acceptance(p, q, lenience))),
        (f"tokens per round, token by token, γ = {gamma}", theory.expected_tokens(alpha, gamma)),
        (f"tokens per round, block verification, γ = {gamma}", block),
    ]
    return Table("Acceptance of each rule", ("rule", "value"), tuple(rows), decimals=4)
