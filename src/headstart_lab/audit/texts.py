"""Texts and logits with speculation against those of plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.engine.engine import Engine
from headstart.engine.sequence import Sequence as Decoded
from headstart.passes.batch import path_lengths
from headstart.passes.runner import Span
from headstart.sampling.params import SamplingParams
from headstart_lab.differences import Difference, Numerics, first_difference, logit_range
from headstart_lab.workbench import Contender, Workbench

Prompt = Sequence[int]
"""Token ids."""
_MOST_ROUNDING = 16
"""How many times the margin of a tie the logits of a row may be off: errors of all layers add up, faults are larger."""


@dataclass
class TextFindings:
    """What one drafter's texts have shown. Greedy ones, and sampled ones under the coupled rule."""

    drafter: str
    texts: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    greedy_differences: list[tuple[int, Difference]] = field(default_factory=list)
    """(prompt, place) of greedy texts that are not plain decoding's."""
    coupled_differences: list[tuple[int, Difference]] = field(default_factory=list)
    """The same for texts drawn at temperature 1 with the target's noise for drafter and target."""
    rows: int = 0
    """Rows of verification passes whose tokens plain decoding said too."""
    equal_rows: int = 0
    """Those whose logits are plain decoding's, bit for bit."""
    largest_row_difference: float = 0.0
    """Of any logit, as a part of the row's range."""

    @property
    def differences(self) -> list[tuple[int, Difference]]:
        return self.greedy_differences + self.coupled_differences

    def count(self, text: Decoded) -> None:
        """A text was decoded."""
        self.texts += 1
        self.tokens += text.num_output
        self.drafted += text.stats.drafted
        self.accepted += text.stats.accepted

    def faults(self, numerics: Numerics) -> list[str]:
        """What must not be, each in a few words; empty: nothing."""
        wrong = [place for _, place in self.differences if not place.is_tie(numerics)]
        faults = [f"{len(wrong)} of {self.texts} texts differ (top-2 gap up to {_largest(wrong):.1e})"] if wrong else []
        if numerics.exact and self.equal_rows < self.rows:
            faults.append(f"{self.rows - self.equal_rows} of {self.rows} verified rows have other bits")
        if self.largest_row_difference > _MOST_ROUNDING * numerics.tie:
            faults.append(f"logits of verified rows are off by {self.largest_row_difference:.1e} of their range")
        return faults

    def ties(self, numerics: Numerics) -> int:
        """Differences that rounding explains."""
        return sum(place.is_tie(numerics) for _, place in self.differences)


@dataclass(frozen=True)
class PlainTexts:
    """What plain decoding says, one prompt at a time, and the logits it computes on the way."""

    greedy: list[Decoded]
    sampled: list[Decoded]
    logits: list[dict[int, Tensor]]
    """[greedy text] place of a token -> float32 [vocab] after it."""


def decode_plainly(bench: Workbench, plain: Contender, prompts: Sequence[Prompt], params: SamplingParams) -> PlainTexts:
    """The texts that all drafters are held against. ``params``: greedy, with a seed for the sampled ones."""
    engine = bench.open(plain)
    greedy = [bench.sequence(prompt, params) for prompt in prompts]
    logits: dict[int, dict[int, Tensor]] = {text.id: {} for text in greedy}

    def keep(span: Span, cached: int, rows: Tensor) -> None:
        if len(rows):
            logits[span.sequence_id][cached] = rows[-1].clone()

    with bench.runner.watched(keep):
        for text in greedy:
            bench.decode(engine, text)
    sampled = [bench.sequence(prompt, replace(params, temperature=1.0), sample=i) for i, prompt in enumerate(prompts)]
    for text in sampled:
        bench.decode(engine, text)
    return PlainTexts(greedy, sampled, list(logits.values()))


def check_texts(bench: Workbench, contender: Contender, plain: PlainTexts) -> TextFindings:
    """Decode the same prompts together, with speculation, and compare tokens and logits.

    Raises:
        ConfigError, CheckpointError: the drafter cannot be built.
        RequestError: a sequence failed.
    """
    engine = bench.open(contender)
    findings = TextFindings(contender.name)
    greedy = _decode_together(bench, engine, plain.greedy, SpeculationParams(), findings, plain.logits)
    coupled = SpeculationParams(verify=VerifyRule.COUPLED)
    sampled = _decode_together(bench, engine, plain.sampled, coupled, findings)
    findings.greedy_differences = _compare(bench, plain.greedy, greedy)
    findings.coupled_differences = _compare(bench, plain.sampled, sampled)
    if bench.runner.runs_stretches:
        # As requests are served: rounds are run at once, and nobody watches.
        for together in (1, len(plain.greedy)):
            greedy = _decode_unwatched(bench, engine, plain.greedy, SpeculationParams(), together, findings)
            sampled = _decode_unwatched(bench, engine, plain.sampled, coupled, together, findings)
            findings.greedy_differences += _compare(bench, plain.greedy, greedy)
            findings.coupled_differences += _compare(bench, plain.sampled, sampled)
    return findings


def _decode_together(
    bench: Workbench,
    engine: Engine,
    plain: Sequence[Decoded],
    speculation: SpeculationParams,
    findings: TextFindings,
    logits: Sequence[dict[int, Tensor]] = (),
) -> list[Decoded]:
    sequences = [_again(bench, text, speculation) for text in plain]
    references = {
        sequence.id: _Reference(sequence, text.tokens, rows)
        for sequence, text, rows in zip(sequences, plain, logits, strict=False)
    }
    with bench.runner.watched(lambda span, cached, rows: _hold_against(references, findings, span, cached, rows)):
        bench.decode(engine, *sequences)
    for sequence in sequences:
        findings.count(sequence)
    return sequences


def _decode_unwatched(
    bench: Workbench,
    engine: Engine,
    plain: Sequence[Decoded],
    speculation: SpeculationParams,
    together: int,
    findings: TextFindings,
) -> list[Decoded]:
    sequences = [_again(bench, text, speculation) for text in plain]
    for first in range(0, len(sequences), together):
        bench.decode(engine, *sequences[first : first + together])
    for sequence in sequences:
        findings.count(sequence)
    return sequences


def _again(bench: Workbench, text: Decoded, speculation: SpeculationParams) -> Decoded:
    """The same request."""
    begun = text.tokens[: text.prompt_length]
    return bench.sequence(begun, text.params, speculation, text.noise.sample, text.source)


@dataclass(frozen=True)
class _Reference:
    """A sequence, and plain decoding's tokens and logits for its prompt."""

    sequence: Decoded
    tokens: list[int]
    logits: Mapping[int, Tensor]


def _hold_against(
    references: Mapping[int, _Reference], findings: TextFindings, span: Span, cached: int, logits: Tensor
) -> None:
    """Compare the rows of a verification pass that plain decoding has computed too."""
    reference = references.get(span.sequence_id)
    if reference is None or len(logits) != len(span) or reference.sequence.tokens[:cached] != reference.tokens[:cached]:
        return
    agrees: list[bool] = []
    parents: list[int] = span.parents.tolist()
    rows = zip(span.tokens.tolist(), parents, path_lengths(parents), strict=True)
    for row, (token, parent, length) in enumerate(rows):
        place = cached + length - 1
        expected = reference.logits.get(place)
        agrees.append((parent < 0 or agrees[parent]) and expected is not None and token == reference.tokens[place])
        if agrees[-1] and expected is not None:
            findings.rows += 1
            if torch.equal(logits[row], expected):
                findings.equal_rows += 1
            else:
                distance = (logits[row] - expected)[torch.isfinite(expected)].abs().nan_to_num(torch.inf).max()
                relative = float(distance) / logit_range(expected)
                findings.largest_row_difference = max(findings.largest_row_difference, relative)


def _compare(bench: Workbench, plain: Sequence[Decoded], texts: Sequence[Decoded]) -> list[tuple[int, Difference]]:
    return [
        (place, first_difference(bench, expected, text.output))
        for place, (expected, text) in enumerate(zip(plain, texts, strict=True))
        if text.output != expected.output
    ]


def _largest(places: Sequence[Difference]) -> float:
    return max(place.gap for place in places)
