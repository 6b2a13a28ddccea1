"""What is read off the target's rows of a sequence: the least that its request and its drafter look at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headstart.engine.best_ids import best_ids
from headstart.engine.pool import DrafterPool
from headstart.engine.sequence import Sequence
from headstart.passes.runner import ModelRunner, SpanOutput, Wanted


def wanted_rows(runner: ModelRunner, drafters: DrafterPool, sequence: Sequence) -> Wanted:
    """What a verified row is asked for: its logits, or no more than its best token where nothing else is looked at."""
    finds = runner.backend.finds_best and sequence.transforms.only_best
    return "best" if finds and sequence.constraint is None and says_tokens(drafters, sequence) else "all"


def says_tokens(drafters: DrafterPool, sequence: Sequence) -> bool:
    """Whether nothing is read off the rows but the tokens that the target says, where no constraint demands more."""
    return (
        sequence.group is None
        and sequence.params.logprobs is None
        and sequence.trace is None
        and sequence.speculation.lenience is None
        and sequence.speculation.typical is None
        and drafters.needs_of(sequence).top_ids <= 1
    )


def best_of_rows(drafters: DrafterPool, sequence: Sequence, output: SpanOutput) -> NDArray[np.int64] | None:
    """The best ids of every row, as many as the sequence's drafter asks for."""
    count = drafters.needs_of(sequence).top_ids
    if count and output.best is not None:
        return output.best[:, None].astype(np.int64)
    return best_ids(output.logits, count) if count and len(output.logits) else None
