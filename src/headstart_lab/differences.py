"""Where a text parts from plain decoding's, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.engine.sequence import Sequence as Decoded
from headstart.passes.backend import Backend
from headstart_lab.workbench import Workbench


@dataclass(frozen=True)
class Numerics:
    """What a backend's arithmetic promises."""

    exact: bool
    """A row has the same bits in every pass, so nothing may ever differ."""
    tie: float
    """Logits nearer than this part of their range may change places by rounding."""


_FINE = 1e-4
_TIES = {"torch-bf16": 2**-7}
"""bf16 has 8 significant bits: two steps of the largest logits."""


def numerics_of(backend: Backend) -> Numerics:
    """The promise of a backend: its rows are exact, or round as its dtype does."""
    return Numerics(exact=backend.exact_rows, tie=_TIES.get(backend.name, _FINE))


@dataclass(frozen=True)
class Difference:
    """The first place where a text parts from the plain one."""

    index: int
    """Output token, from 0."""
    plain: int | None
    """Token id; None: the text had ended."""
    other: int | None
    gap: float
    """How far apart the two best tokens are there, by plain decoding, as a part of the logits' range."""
    between_best_two: bool
    """The two tokens are the two best."""

    def is_tie(self, numerics: Numerics) -> bool:
        """Whether rounding explains it: the two best tokens are as good as equal, and one stands for the other."""
        return self.between_best_two and self.gap < numerics.tie and not numerics.exact


def first_difference(bench: Workbench, plain: Decoded, other: Sequence[int]) -> Difference:
    """Where ``other`` leaves the output of a plainly decoded sequence, from which it differs.

    A greedy request takes the token of the highest logit; one that samples (from the whole law) that of the highest
    logit / temperature + Gumbel noise of its position. The best two are told by that score. Costs a plain pass.
    """
    output, shared = plain.output, 0
    while shared < min(len(output), len(other)) and output[shared] == other[shared]:
        shared += 1
    said, heard = (text[shared] if shared < len(text) else None for text in (output, other))
    prefix = plain.tokens[: plain.prompt_length + shared]
    (logits,) = bench.steps_after(prefix, [()], plain.source)
    scores = logits.double()
    if not plain.params.greedy:
        scores /= plain.params.temperature
        scores -= plain.noise.position_exponentials(len(prefix), len(scores)).log()
    best = scores.topk(2)
    gap = float(best.values[0] - best.values[1]) * (plain.params.temperature or 1.0) / logit_range(logits)
    return Difference(shared, said, heard, gap, {said, heard} == set(best.indices.tolist()))


def logit_range(logits: Tensor) -> float:
    """Largest less smallest of the finite logits; 1 where that is 0."""
    finite = logits[torch.isfinite(logits)]
    return float(finite.max() - finite.min()) or 1.0
