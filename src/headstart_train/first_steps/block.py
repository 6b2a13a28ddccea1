"""Block heads (DFlash and its kin) at their first step."""

from __future__ import annotations

from dataclasses import replace

import torch

from headstart.drafting.methods.dflash.head import BlockHead, block_config
from headstart_train.first_steps.tokens import FIRST_SURENESS, mask_token, name_tokens
from headstart_train.making import Start
from headstart_train.objectives.block import BlockObjective

_LAYERS = 3


def make(start: Start) -> BlockObjective:
    """A block head at its first step."""
    head, settings = _block_head(start), start.settings
    name_tokens(head, start.ids)
    return BlockObjective(
        head.to(start.ids.device),
        start.tables,
        start.ids,
        loss=settings.loss,
        decay=settings.decay,
        spacing=settings.spacing,
    )


def _block_head(start: Start) -> BlockHead:
    """A new block head; like the ``known`` one, if it is to begin from that, but for what may differ."""
    config, weights, ids = start.target.config, start.weights, start.ids
    settings, known, slots = start.settings, start.known, start.slots
    layers = settings.layers if isinstance(settings.layers, int) else None
    if isinstance(known, BlockHead):
        begun = known.config
        size = slots + begun.block_size - begun.slots
        shape = replace(begun, num_layers=layers or begun.num_layers, draft_vocab_size=len(ids), block_size=size)
    else:
        shape = block_config(config, slots, layers or _LAYERS, mask_token(config, ids), len(ids))
    size = shape.slots
    if settings.root_speaks is not None:
        shape = replace(shape, root_speaks=settings.root_speaks, block_size=size + (not settings.root_speaks))
    causal = shape.causal if settings.causal is None else settings.causal
    rank = shape.markov_rank if settings.markov_rank is None else settings.markov_rank
    sure = shape.confidence if settings.confidence is None else settings.confidence
    shape = replace(shape, causal=causal, markov_rank=rank, confidence=sure, confidence_reads_token=sure and rank > 0)
    head = BlockHead(shape)
    with torch.no_grad():
        # As in ``eagle.py``.
        head.norm.weight.copy_(FIRST_SURENESS * (weights.final_norm.weight + config.norms.offset))
        if shape.own_output:
            head.lm_head.weight.copy_(weights.head.weight[ids.cpu()])
    if isinstance(known, BlockHead):
        head.embedding = known.embedding
    return head
