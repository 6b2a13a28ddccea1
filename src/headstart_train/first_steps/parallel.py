"""Medusa and blockwise heads at their first step."""

from __future__ import annotations

from headstart.drafting.heads.parallel import BLOCKWISE, MEDUSA, ParallelConfig, ParallelHeads, ParallelKind
from headstart_train.first_steps.tokens import name_tokens
from headstart_train.making import Start
from headstart_train.objectives.parallel import ParallelObjective

_RESIDUAL_BLOCKS = 4


def make_medusa(start: Start) -> ParallelObjective:
    """Medusa's heads at their first step."""
    return _make(start, MEDUSA)


def make_blockwise(start: Start) -> ParallelObjective:
    """Blockwise heads at their first step."""
    return _make(start, BLOCKWISE)


def _make(start: Start, kind: ParallelKind) -> ParallelObjective:
    """New heads, of the shape of the known ones if they are to begin from these."""
    settings, known = start.settings, start.known
    begun = known.config if isinstance(known, ParallelHeads) else None
    heads = ParallelHeads(
        ParallelConfig(
            kind=kind,
            hidden_size=start.target.config.hidden_size,
            vocab_size=start.target.config.vocab_size,
            draft_vocab_size=len(start.ids),
            slots=start.slots,
            num_layers=settings.residual_blocks or (_RESIDUAL_BLOCKS if begun is None else begun.num_layers),
            output_maps=kind == MEDUSA if begun is None else begun.output_maps,
            reads_token=kind == MEDUSA if settings.reads_token is None else settings.reads_token,
        )
    )
    name_tokens(heads, start.ids)
    return ParallelObjective(heads.to(start.ids.device), start.tables, start.ids, loss=settings.loss, decay=start.decay)
