"""Acceptance as tables (the forms of the paper's tables 3 and 5, and where it is lost), plots and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from headstart_charts.page import Cell, Table
from headstart_charts.plots import Curve, Figure
from headstart_lab.acceptance.measuring import LENIENCES, Acceptance, Position
from headstart_lab.acceptance.token_kinds import TokenKind

FORMAT = "headstart-acceptance/2"
_KINDS = list(TokenKind)
Key = Callable[[Position], str]


def context_range(position: Position) -> str:
    """The power-of-two range that the context's length lies in."""
    low = 0 if position.context < 64 else 1 << (position.context.bit_length() - 1)
    return f"{low}–{(low or 32) * 2 - 1} tokens"


BUCKETS: dict[str, Key] = {
    "token kind": lambda position: position.kind.value,
    "context length": context_range,
    "turn": lambda position: str(position.turn + 1),
    "task group": lambda position: position.group,
}


def to_json(
    results: Sequence[Acceptance], record: Mapping[str, Any], skipped: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Everything as plain values, ``record`` first; ``skipped``: drafters that were left out, and why."""
    return {
        "format": FORMAT,
        **record,
        "skipped": dict(skipped or {}),
        "results": [_result(result) for result in results],
    }


def exhibits(
    results: Sequence[Acceptance], record: Mapping[str, Any], skipped: Mapping[str, str] | None = None
) -> list[Table | Figure]:
    """What a reader wants to see, the most important first."""
    shown: list[Table | Figure] = [table_3(results, record)]
    if any(result.lenient_alphas is not None for result in results):
        shown.append(table_5(results))
    shown += [by_draft_position(results), position_figure(results), context_figure(results)]
    for result in results:
        shown += [lost(result, name) for name in BUCKETS]
    left_out = {turn: why for result in results for turn, why in result.left_out.items()}
    if left_out:
        shown.append(Table(f"Left out: {len(left_out)} turns", ("turn", "why"), tuple(left_out.items())))
    if skipped:
        shown.append(Table("Left out", ("drafter", "why"), tuple(skipped.items())))
    return shown


def table_3(results: Sequence[Acceptance], record: Mapping[str, Any]) -> Table:
    """alpha of each pair of models (the form of the paper's table 3)."""
    target = record.get("model", {}).get("name", "target")
    rows: list[tuple[Cell, ...]] = [
        (
            f"{target}, {result.drafter}",
            f"{result.temperature:g}",
            "draws" if result.drawn else "point masses",
            result.alpha,
            f"{result.coverage:.0%}",
            result.turns,
            len(result.positions),
            result.tokens / result.rounds if result.rounds else None,
        )
        for result in results
    ]
    return Table(
        "Acceptance rate α (form of the paper's table 3)",
        ("target, drafter", "T", "guesses", "α", "guessed", "turns", "positions", "tokens a round"),
        tuple(rows),
        "α: mean of Σ min(p, q) over the positions of texts that the target wrote (Corollary 3.6), where there was a "
        "guess; of point masses, the probability that the target gives them. guessed: part of the positions with a "
        "guess. tokens a round: of a run with speculation.",
        decimals=(0, 0, 0, 3, 0, 0, 0, 2),
    )


def table_5(results: Sequence[Acceptance]) -> Table:
    """alpha by lenience (the form of the paper's table 5)."""
    rows: list[tuple[Cell, ...]] = [
        (result.drafter, f"{result.temperature:g}", *alphas)
        for result in results
        if (alphas := result.lenient_alphas) is not None
    ]
    return Table(
        "α by lenience, which is lossy (form of the paper's table 5)",
        ("drafter", "T", *(f"l = {lenience:g}" for lenience in LENIENCES)),
        tuple(rows),
        "For drafts that guess one token a position.",
        decimals=3,
    )


def by_draft_position(results: Sequence[Acceptance]) -> Table:
    """Acceptance at each position of a draft, counted in runs with speculation."""
    drafting = [result for result in results if result.drafted_per_position]
    positions = max((len(result.drafted_per_position) for result in drafting), default=0)
    rows: list[tuple[Cell, ...]] = []
    for result in drafting:
        rates = _rates(result)
        rows.append((result.drafter, f"{result.temperature:g}", *rates, *[None] * (positions - len(rates))))
    return Table(
        "Acceptance by position in the draft",
        ("drafter", "T", *(str(i + 1) for i in range(positions))),
        tuple(rows),
        "Counted in a run with speculation: how often a guess at this depth was accepted where all above it were.",
    )


def where_lost(result: Acceptance, bucket: str) -> list[dict[str, Any]]:
    """Where a drafter's acceptance is lost, by one of BUCKETS, as JSON values: all but the name are numbers."""
    members: dict[str, list[Position]] = {}
    for position in result.positions:
        members.setdefault(BUCKETS[bucket](position), []).append(position)
    total, everything = len(result.positions), sum(position.lost for position in result.positions)
    rows = []
    for name in _ordered(members, bucket):
        here = members[name]
        chances = [position.guess.accepted for position in here if position.guess.accepted is not None]
        rows.append(
            {
                "name": name,
                "positions": len(here),
                "share": len(here) / total,
                "coverage": len(chances) / len(here),
                "alpha": fmean(chances) if chances else None,
                "share_of_lost": sum(position.lost for position in here) / everything if everything else None,
            }
        )
    return rows


def lost(result: Acceptance, bucket: str) -> Table:
    """Where a drafter's acceptance is lost, by one of BUCKETS."""
    rows: list[tuple[Cell, ...]] = [
        (
            row["name"],
            row["positions"],
            f"{row['share']:.0%}",
            f"{row['coverage']:.0%}",
            row["alpha"],
            None if row["share_of_lost"] is None else f"{row['share_of_lost']:.0%}",
        )
        for row in where_lost(result, bucket)
    ]
    return Table(
        f"{result.drafter} at T = {result.temperature:g}, by {bucket}",
        (bucket, "positions", "of all", "guessed", "α", "of what is lost"),
        tuple(rows),
        decimals=3,
    )


def position_figure(results: Sequence[Acceptance]) -> Figure:
    """Acceptance by position in the draft."""
    curves = [Curve(_label(result), _places(rates), rates) for result in results if (rates := _rates(result))]
    return Figure("Acceptance by position in the draft", "position", "accepted", tuple(curves), y_max=1.0)


def context_figure(results: Sequence[Acceptance]) -> Figure:
    """alpha against context length."""
    curves = []
    for result in results:
        members: dict[int, list[float]] = {}
        for position in result.positions:
            if position.guess.accepted is not None:
                members.setdefault(position.context // 64, []).append(position.guess.accepted)
        places = sorted(members)
        curves.append(
            Curve(_label(result), [64.0 * place + 32 for place in places], [fmean(members[place]) for place in places])
        )
    return Figure("α by context length", "tokens before the guess", "α", tuple(curves), y_max=1.0)


def _result(result: Acceptance) -> dict[str, Any]:
    return {
        "drafter": result.drafter,
        "temperature": result.temperature,
        "guesses": "draws" if result.drawn else "point masses",
        "alpha": result.alpha,
        "coverage": result.coverage,
        "turns": result.turns,
        "left_out": result.left_out,
        "positions": len(result.positions),
        "alpha_by_lenience": None
        if (alphas := result.lenient_alphas) is None
        else [{"lenience": lenience, "alpha": alpha} for lenience, alpha in zip(LENIENCES, alphas, strict=True)],
        "tokens": result.tokens,
        "rounds": result.rounds,
        "drafted_per_position": result.drafted_per_position,
        "accepted_per_position": result.accepted_per_position,
        "lost": {bucket: where_lost(result, bucket) for bucket in BUCKETS},
    }


def _ordered(members: Mapping[str, object], bucket: str) -> list[str]:
    if bucket == "token kind":
        return [kind for kind in _KINDS if kind in members]
    if bucket == "context length":
        return sorted(members, key=lambda name: int(name.partition("–")[0]))
    return list(members)


def _rates(result: Acceptance) -> list[float]:
    pairs = zip(result.accepted_per_position, result.drafted_per_position, strict=True)
    return [accepted / drafted for accepted, drafted in pairs]


def _places(rates: Sequence[float]) -> list[float]:
    return [float(place + 1) for place in range(len(rates))]


def _label(result: Acceptance) -> str:
    return f"{result.drafter}, T = {result.temperature:g}"
