"""What is read off the target's rows of a sequence: the least that its request and its drafter look at."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.engine.pool import DrafterPool
from headstart.engine.sequence import Sequence
from headstart.passes.runner import ModelRunner, SpanOutput, Wanted

_STRIPES = 384


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


def best_ids(logits: Tensor, count: int) -> NDArray[np.int64]:
    """[row, min(count, vocab)] token ids of the largest of float32 ``logits`` [row, vocab], the best first.

    Every ``_STRIPES``-th logit makes a stripe. The best lie in the stripes of the largest peaks, so that almost all
    logits are read once only: several times as fast as ``topk`` over whole rows.
    """
    rows, vocab = logits.shape
    depth = vocab // _STRIPES
    if count >= _STRIPES or depth < 2:
        return _host(logits.topk(min(count, vocab)).indices)
    striped = logits[:, : depth * _STRIPES].view(rows, depth, _STRIPES)
    best = striped.amax(1).topk(count, sorted=False).indices
    places = (best[:, :, None] + torch.arange(0, depth * _STRIPES, _STRIPES, device=logits.device)).flatten(1)
    if vocab > depth * _STRIPES:
        rest = torch.arange(depth * _STRIPES, vocab, device=logits.device)
        places = torch.cat((places, rest.expand(rows, -1)), dim=1)
    return _host(places.gather(1, logits.gather(1, places).topk(count).indices))


def _host(ids: Tensor) -> NDArray[np.int64]:
    array: NDArray[np.int64] = ids.numpy(force=True)
    return array
