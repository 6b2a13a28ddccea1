"""Where two greedy texts part, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.analysis.workbench import Workbench
from headstart.models.backend import Backend
from headstart.native.backend import NativeBackend


@dataclass(frozen=True)
class Numerics:
    """What a backend's arithmetic promises."""

    exact: bool
    """A row has the same bits in every pass, so nothing may ever differ."""
    tie: float
    """Logits nearer than this part of their range may change places by rounding."""


_TIES = {"torch-fp32": 1e-4, "torch-bf16": 2**-7}
"""bf16 has 8 significant bits: two steps of the largest logits."""


def numerics_of(backend: Backend) -> Numerics:
    """The promise of a backend: the native pass is exact, others round as their dtype does."""
    return Numerics(exact=isinstance(backend, NativeBackend), tie=_TIES.get(backend.name, 1e-4))


@dataclass(frozen=True)
class Difference:
    """The first place where a greedy text parts from the plain one."""

    index: int
    """Output token, from 0."""
    plain: int | None
    """Token id; None: the text had ended."""
    other: int | None
    gap: float
    """Distance of the two best logits there, by plain decoding, as a part of the logits' range."""
    between_best_two: bool
    """The two tokens are the two best."""

    def is_tie(self, numerics: Numerics) -> bool:
        """Whether rounding explains it: the two best tokens are as good as equal, and one stands for the other."""
        return self.between_best_two and self.gap < numerics.tie and not numerics.exact


def first_difference(bench: Workbench, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int]) -> Difference:
    """Where ``other`` leaves ``plain``, two different outputs of one prompt. Costs a plain pass over the prefix."""
    shared = 0
    while shared < min(len(plain), len(other)) and plain[shared] == other[shared]:
        shared += 1
    said, heard = (text[shared] if shared < len(text) else None for text in (plain, other))
    (logits,) = bench.steps_after([*prompt, *plain[:shared]], [()])
    best = logits.topk(2)
    gap = float(best.values[0] - best.values[1]) / _range(logits)
    return Difference(shared, said, heard, gap, {said, heard} == set(best.indices.tolist()))


def _range(logits: Tensor) -> float:
    finite = logits[torch.isfinite(logits)]
    return float(finite.max() - finite.min()) or 1.0
