"""The quality of precisions as JSON and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headstart_charts.page import Cell, Table
from headstart_lab.quality.run import Quality

FORMAT = "headstart-quality/1"
QUANTILES = (0.5, 0.9, 0.99, 1.0)


def to_json(results: Sequence[Quality], record: Mapping[str, Any], skipped: Mapping[str, str]) -> dict[str, Any]:
    """Everything but the single tokens; logarithms are natural."""
    return {
        "format": FORMAT,
        "verdicts": [result.verdict for result in results],
        **record,
        "precisions": [_result(result) for result in results],
        "skipped": dict(skipped),
    }


def exhibits(results: Sequence[Quality], skipped: Mapping[str, str]) -> list[Table]:
    """What a reader wants to see; the verdicts stand above or below it."""
    shown = [text_table(results)]
    if any(result.greedy for result in results):
        shown.append(greedy_table(results))
    if skipped:
        shown.append(Table("Left out", ("precision", "why"), tuple(skipped.items())))
    return shown


def text_table(results: Sequence[Quality]) -> Table:
    """Laws on the same text."""
    rows: list[tuple[Cell, ...]] = []
    for result in results:
        texts = result.texts
        if not rows:
            rows.append((f"{result.reference} (reference)", None, texts.reference_perplexity, *(None,) * 5))
        rows.append(
            (
                result.precision,
                f"{result.weight_bytes / 1e6:.0f}",
                texts.perplexity,
                f"{texts.perplexity_ratio:.4f} ± {texts.ratio_error:.4f}",
                f"{texts.mean_divergence:.2e}",
                f"{texts.divergence_at(0.99):.2e}",
                f"{texts.divergence_at(1.0):.2e}",
                f"{texts.agreement:.2%}",
            )
        )
    return Table(
        "Laws on the same text",
        ("precision", "MB", "perplexity", "over reference", "mean KL", "p99 KL", "largest KL", "same best token"),
        tuple(rows),
        f"{len(results[0].texts.loss) if results else 0} predicted tokens of a given text, not of what a model says. "
        "KL(reference || precision) in nats. ±: standard error, by paired differences.",
        decimals=3,
    )


def greedy_table(results: Sequence[Quality]) -> Table:
    """Answers that each gave by itself."""
    rows: list[tuple[Cell, ...]] = [
        (
            result.precision,
            len(result.greedy),
            f"{result.equal_answers} of {len(result.greedy)}",
            result.mean_shared,
            result.mean_tokens,
        )
        for result in results
    ]
    return Table(
        "Greedy answers against the reference's",
        ("precision", "prompts", "equal to the end", "tokens until they part", "of at most"),
        tuple(rows),
        "Each goes on from its own tokens; an answer that never parts counts with its whole length. Two texts that "
        "part are not better and worse: after one different token, both go their own way.",
        decimals=1,
    )


def _result(result: Quality) -> dict[str, Any]:
    texts = result.texts
    return {
        "precision": result.precision,
        "backend": result.backend,
        "weight_bytes": result.weight_bytes,
        "verdict": result.verdict,
        "tokens": len(texts.loss),
        "perplexity": texts.perplexity,
        "reference_perplexity": texts.reference_perplexity,
        "perplexity_ratio": texts.perplexity_ratio,
        "perplexity_ratio_error": texts.ratio_error,
        "mean_kl": texts.mean_divergence,
        "kl_quantiles": {str(part): texts.divergence_at(part) for part in QUANTILES},
        "same_best_token": texts.agreement,
        "greedy_equal": result.equal_answers,
        "greedy_mean_shared": result.mean_shared,
        "greedy_mean_tokens": result.mean_tokens,
        "greedy": [asdict(pair) for pair in result.greedy],
    }
