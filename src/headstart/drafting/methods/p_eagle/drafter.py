"""P-EAGLE (arXiv:2602.01469): EAGLE-3's layer, which guesses several tokens in one pass.

Behind the last true row stand rows that read a mask token beside a learnt state, in place of a guess and of what the
head made of it. Each says the token in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headstart.drafting.base import SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import open_head
from headstart.drafting.head_trees.one_pass import OnePassDrafter, OnePassOptions
from headstart.drafting.head_trees.reading import Features, Reading
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.eagle.head import PARALLEL_KIND, EagleHead
from headstart.passes.batch import IntArray


@dataclass(frozen=True)
class PEagleOptions(OnePassOptions):
    pass


class PEagleDrafter(OnePassDrafter):
    """One pass over what was not read yet, and masks."""

    Options = PEagleOptions
    _options: PEagleOptions

    def __init__(self, context: DraftContext, options: PEagleOptions) -> None:
        head = open_head(context, options.model, PARALLEL_KIND, EagleHead)
        tables = context.require_tables()()
        self._pass = context.require_runner().backend.kit.masked_pass(head, tables, options.precision)
        self._slots = head.config.slots
        super().__init__(context, options, head, head.config.taps, self._pass, tables, options.text_vocabulary)
        self._eps = None if head.config.norm_output else head.config.norm_eps
        self._growth = self._pass.growth(options.width, self._ids())

    def _read_rows(self, rows: Sequence[tuple[IntArray, Features]], groups: Sequence[DraftRows]) -> None:
        self._pass.read(*_joined(rows), groups)

    def _say(self, drafted: Sequence[tuple[SequenceView, Reading]], slots: int) -> tuple[Tensor, Tensor]:
        rows = [reading.unread(sequence) for sequence, reading in drafted]
        return self._pass.guess(*_joined(rows), [DraftRows(each.cache, each.num_unread) for _, each in drafted], slots)


def _joined(rows: Sequence[tuple[IntArray, Features]]) -> tuple[IntArray, Tensor]:
    tokens, features = (np.concatenate(column) for column in zip(*rows, strict=True))
    return tokens, torch.from_numpy(features)
