"""Block heads (DFlash and its kin) at their first step."""

from __future__ import annotations

from dataclasses import replace

import torch

from headstart.drafting.methods.dflash.head import BlockConfig, BlockHead
from headstart.models.config import ModelConfig, RopeConfig
from headstart.models.layer_selection import spread_layers
from headstart_train.first_steps.tokens import FIRST_SURENESS, mask_token, name_tokens
from headstart_train.making import Start
from headstart_train.objectives.block import BlockObjective

_LAYERS = 3
_TAPS = 5


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


def block_taps(num_layers: int) -> tuple[int, ...]:
    """Layers whose inputs are read: evenly spread from the second to the last but two."""
    last = max(num_layers - 2, 1)
    first = min(2, last)
    available = last - first + 1
    return tuple(first + place for place in spread_layers(min(_TAPS, available), available))


def block_config(
    target: ModelConfig, slots: int, num_layers: int, mask_token_id: int, draft_vocab_size: int | None = None
) -> BlockConfig:
    """The head for a target: layers of its shape with norms of queries and keys, its own embedding and output."""
    return BlockConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size or target.vocab_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        mlp_size=target.mlp_size,
        rope=target.ropes[0] if target.ropes else RopeConfig(10000.0, target.head_dim),
        num_layers=num_layers,
        taps=block_taps(target.num_layers),
        block_size=slots + 1,
        mask_token_id=mask_token_id,
        norm_eps=target.norms.eps,
        max_positions=target.max_positions,
    )
