"""EAGLE heads at their first step."""

from __future__ import annotations

from dataclasses import replace

import torch

from headstart.drafting.methods.eagle.head import FIRST, THIRD, EagleConfig, EagleHead, Variant, eagle3_taps
from headstart.models.config import ModelConfig, RopeConfig
from headstart.passes.batch import FINAL_TAP
from headstart_train.first_steps.tokens import FIRST_SURENESS, mask_token, name_tokens
from headstart_train.making import Start
from headstart_train.objectives.eagle import EagleObjective


def make(start: Start) -> EagleObjective:
    """An EAGLE-3 head at its first step."""
    return _objective(start, EagleHead(_shape(start, THIRD)))


def make_first(start: Start) -> EagleObjective:
    """An EAGLE-1 head at its first step."""
    return _objective(start, EagleHead(_shape(start, FIRST)))


def make_parallel(start: Start) -> EagleObjective:
    """A P-EAGLE head at its first step: like the known one, if it is to begin from that, whose norms others may have
    chosen."""
    shape, known = _shape(start, THIRD), start.known
    if isinstance(known, EagleHead):
        layers, windows = shape.num_layers, shape.windows
        shape = replace(known.config, draft_vocab_size=len(start.ids), num_layers=layers, windows=windows)
    mask = shape.mask_token_id if shape.slots else mask_token(start.target.config, start.ids)
    head = EagleHead(replace(shape, slots=start.slots, mask_token_id=mask))
    if isinstance(known, EagleHead):
        head.embedding = known.embedding
    return _objective(start, head)


def _shape(start: Start, variant: Variant) -> EagleConfig:
    """A new head's."""
    layers, window = start.settings.layers, start.settings.window
    known = start.known.config if isinstance(start.known, EagleHead) else None
    if not isinstance(layers, int):
        layers = 1 if known is None else known.num_layers
    if window is None and known is not None:
        windows = known.windows and known.windows + known.windows[-1:] * (layers - known.num_layers)
    else:
        windows = (window,) * layers if window else ()
    return replace(eagle_config(start.target.config, variant, len(start.ids), layers), windows=windows)


def _objective(start: Start, head: EagleHead) -> EagleObjective:
    """What a new head learns; EAGLE-3's output head and final norm begin as the target's own."""
    weights, settings, ids = start.weights, start.settings, start.ids
    if head.config.side_by_side:
        with torch.no_grad():
            # What the target's own head makes of its own final norm is the best guess there is.
            head.lm_head.weight.copy_(weights.head.weight[ids.cpu()])
            # But a head that knows nothing yet must not be sure of it, or it spends its first steps on forgetting that.
            norm = weights.final_norm.weight + start.target.config.norms.offset
            head.norm.weight.copy_(FIRST_SURENESS * norm)
    name_tokens(head, ids)
    return EagleObjective(
        head.to(ids.device),
        start.tables,
        ids,
        loss=settings.loss,
        steps=start.unroll,
        decay=start.decay,
        dropout=settings.dropout or 0.0,
    )


def eagle_config(
    target: ModelConfig,
    variant: Variant = THIRD,
    draft_vocab_size: int | None = None,
    num_layers: int = 1,
    slots: int = 0,
    mask_token_id: int = 0,
) -> EagleConfig:
    """The head for a target: its own layers' shape; for EAGLE-3 with the norms of EAGLE-3.1 (arXiv:2605.09992).

    ``slots`` and ``mask_token_id``: of one that guesses several tokens in one pass.
    """
    rope = target.ropes[0] if target.ropes else RopeConfig(10000.0, target.head_dim)
    fused = variant == THIRD
    return EagleConfig(
        variant=variant,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=(draft_vocab_size or target.vocab_size) if fused else target.vocab_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        mlp_size=target.mlp_size,
        rope=rope,
        num_layers=num_layers,
        taps=eagle3_taps(target.num_layers) if fused else (FINAL_TAP,),
        norm_eps=target.norms.eps,
        fc_bias=not fused,
        fc_norm=fused,
        norm_output=fused,
        slots=slots,
        mask_token_id=mask_token_id,
        max_positions=target.max_positions,
    )
