"""What can be trained, and each kind of it at its first step."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead, block_config
from headstart.drafting.methods.eagle.head import MOST_LAYERS, PARALLEL_KIND, EagleHead, eagle_config
from headstart.drafting.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart.drafting.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart.errors import ConfigError, meant
from headstart.loading.model import Model
from headstart.models.config import ModelConfig
from headstart.models.layer_selection import choose_layers, select_layers
from headstart.models.weights import DecoderWeights
from headstart_train.decoder.trainable import TrainableDecoder
from headstart_train.files.models import check_writable
from headstart_train.module_start import MODULE_KIND, first_module, require_module
from headstart_train.objectives.block import BlockObjective
from headstart_train.objectives.draft import DraftModelObjective
from headstart_train.objectives.eagle import EagleObjective
from headstart_train.objectives.lookahead import LookaheadObjective
from headstart_train.objectives.losses import LossName
from headstart_train.objectives.multi_token import MultiTokenObjective
from headstart_train.objectives.objective import Objective
from headstart_train.objectives.parallel import ParallelObjective
from headstart_train.warm_start import KnownHead

HeadName = Literal[
    "eagle3", "p-eagle", "dflash", "dspark", "jetspec", "eagle", "medusa", "blockwise", "mtp", "draft-model", "pass"
]
_FIRST_SURENESS = 0.1
_SLOTS = 4
_BLOCK_SLOTS, _BLOCK_LAYERS = 9, 3
_MASKED_SLOTS = 8
_RESIDUAL_BLOCKS = 4
HEAD_NAMES: tuple[HeadName, ...] = get_args(HeadName)
_BLOCK_NAMES: tuple[HeadName, ...] = ("dflash", "dspark", "jetspec")
WHOLE_VOCABULARY = ("mtp", "draft-model", "pass")
"""Those that say all of the target's tokens, and learn of all unless told otherwise."""
_USERS: dict[str, tuple[HeadName, ...]] = {
    "slots": ("p-eagle", *_BLOCK_NAMES, "medusa", "blockwise", "pass"),
    "unroll": ("eagle3", "p-eagle", "eagle", "mtp"),
    "dropout": ("eagle3", "p-eagle", "eagle"),
    "layers": ("draft-model", *_BLOCK_NAMES, "eagle3", "p-eagle", "eagle"),
    "init": ("eagle3", "p-eagle", *_BLOCK_NAMES, "eagle", "medusa", "blockwise", "mtp"),
    "residual_blocks": ("medusa",),
    "reads_token": ("medusa",),
    "causal": _BLOCK_NAMES,
    "markov_rank": _BLOCK_NAMES,
    "confidence": _BLOCK_NAMES,
    "root_speaks": _BLOCK_NAMES,
    "spacing": _BLOCK_NAMES,
}
"""The heads that use a setting, where not all do."""


@dataclass(frozen=True)
class HeadSettings:
    """The head, and what it is taught."""

    draft_vocab: int | None = None
    """Tokens it can say (modules, draft models and look-ahead embeddings say all, and learn of these); None: enough for
    97 % of what the target says, or all for those three; 0: all."""
    slots: int | None = None
    """Future tokens (P-EAGLE, DFlash, Medusa, blockwise, PaSS); None: as many as the head that is begun from, or four,
    eight for P-EAGLE, nine for DFlash."""
    unroll: int | None = None
    """Steps that EAGLE heads and multi-token modules are unrolled for, and the most that P-EAGLE's masks stand behind;
    None: 4 for EAGLE-3 and modules, 1 for the others."""
    decay: float | None = None
    """Weight of a depth relative to the one above it; None: 0.8, for DFlash by the length of its blocks."""
    dropout: float | None = None
    """Share of what EAGLE heads read that is zeroed while they learn, lest they learn the text by heart; None: 0."""
    loss: LossName = "ce"
    layers: int | tuple[int, ...] | None = None
    """The target's layers that a draft model begins as: these, or so many, evenly spread; None: the first two and the
    last. Of an EAGLE head or a block head: how many it has; None: as many as the head that is begun from, or one, three
    for a block head."""
    init: Path | None = None
    """Directory of a head to begin from (EAGLE, DFlash, Medusa, blockwise, a multi-token module); P-EAGLE also begins
    from EAGLE-3. A multi-token module without one begins from the target's own, where that has one."""
    residual_blocks: int | None = None
    """Of each of Medusa's slots, one after the other; None: as many as the head that is begun from, or four."""
    reads_token: bool | None = None
    """Medusa's slots read the token that the target has just said, beside its state; None: they do."""
    causal: bool | None = None
    """The rows of DFlash's blocks see those before them only; None: as the head that is begun from, or both ways."""
    markov_rank: int | None = None
    """Of what the token before a guess of DFlash adds to its logits; None: as the head that is begun from, or 0."""
    confidence: bool | None = None
    """A DFlash head learns how likely its guesses are accepted, too; None: as the head that is begun from, or no."""
    root_speaks: bool | None = None
    """The last token's row of a block guesses, too; None: as the head that is begun from, or no."""
    spacing: int | None = None
    """Tokens of the text from one block of DFlash that is learnt to the next; None: as many as a block has rows."""


_KIN: dict[HeadName, HeadSettings] = {
    "dspark": HeadSettings(slots=7, markov_rank=64, confidence=True, root_speaks=True),
    "jetspec": HeadSettings(slots=16, causal=True),
}
"""DFlash's kin -> what is set in it unless the user says otherwise (arXiv:2607.05147, 2606.18394)."""


def trunk_of(name: HeadName, head: HeadSettings) -> tuple[HeadName, HeadSettings]:
    """The kind of head that is trained under a name, and its settings: DFlash's kin are heads of its trunk."""
    told = _KIN.get(name)
    if told is None:
        return name, head
    if head.init is not None:
        # Its blocks are as long as those that it is begun from.
        told = replace(told, slots=None)
    unset = {each.name: getattr(told, each.name) for each in fields(head) if getattr(head, each.name) is None}
    return "dflash", replace(head, **unset)


def require_used(name: HeadName, head: HeadSettings) -> None:
    """Refuse settings that this kind of head does not use.

    Raises:
        ConfigError: which, or there is no such kind.
    """
    if name not in HEAD_NAMES:
        raise ConfigError(f"there is no head {name!r} to train; {meant(name, HEAD_NAMES)}")
    for setting, users in _USERS.items():
        if getattr(head, setting) is not None and name not in users:
            raise ConfigError(f"{setting} is a setting of {', '.join(users)}; leave it out for {name}.")
    if head.loss == "dpace" and name not in _BLOCK_NAMES:
        raise ConfigError(f"the loss dpace weighs the guesses of a block; for {name} choose ce, tv or lk.")
    if head.spacing is not None and head.spacing < 1:
        raise ConfigError(f"spacing is {head.spacing}; give a number of tokens, 1 or more.")
    if name == "draft-model" or head.layers is None:
        return
    if isinstance(head.layers, tuple):
        raise ConfigError(f"layers is {head.layers}, but {name} has layers of its own; give their number.")
    if not 1 <= head.layers <= MOST_LAYERS:
        raise ConfigError(f"layers is {head.layers}; give a number from 1 to {MOST_LAYERS}.")


def require_trainable(name: HeadName, head: HeadSettings, target: Model) -> None:
    """Refuse a draft model or a module that cannot be made of this target.

    Raises:
        ConfigError, CheckpointError: why.
    """
    if name == "draft-model":
        check_writable(target.config)
        _first_layers(head.layers, target.config.num_layers)
    if name == MODULE_KIND:
        require_module(target, head.init)


def _first_layers(wanted: int | tuple[int, ...] | None, available: int) -> list[int]:
    """The target's layers that a draft model begins as."""
    first_two_and_last = sorted({0, min(1, available - 1), available - 1})
    return choose_layers(first_two_and_last if wanted is None else wanted, available)


def make_objective(
    name: HeadName,
    target: Model,
    weights: DecoderWeights,
    ids: Tensor,
    settings: HeadSettings,
    tables: TargetTables,
    known: KnownHead | None,
) -> Objective:
    """What is trained, at its first step. ``ids``: tokens that the head can say."""
    config, ids = target.config, ids.to(tables.head.device)
    decay = 0.8 if settings.decay is None else settings.decay
    if name == "draft-model":
        with_ends = replace(config, eos_token_ids=target.eos_token_ids)
        small, its_weights = select_layers(with_ends, weights, _first_layers(settings.layers, config.num_layers))
        return DraftModelObjective(small, its_weights, tables, ids, target.checkpoint, loss=settings.loss)
    if name == MODULE_KIND:
        return MultiTokenObjective(
            config,
            weights,
            target.checkpoint,
            first_module(target, weights, settings.init),
            tables,
            ids,
            loss=settings.loss,
            steps=4 if settings.unroll is None else settings.unroll,
            decay=decay,
        )
    if name == "pass":
        lookahead = LookaheadEmbeddings(slots_of(name, settings, known), config.hidden_size).to(ids.device)
        lookahead.begin_like(tables.embedding, config.embedding_scale)
        frozen = TrainableDecoder(config, replace(weights, embedding=tables.embedding), frozen=True, device=ids.device)
        return LookaheadObjective(lookahead, frozen, tables, ids, loss=settings.loss, decay=decay)
    if name == "dflash":
        block = _block_head(config, weights, ids, settings, known)
        _name_tokens(block, ids)
        return BlockObjective(
            block.to(ids.device), tables, ids, loss=settings.loss, decay=settings.decay, spacing=settings.spacing
        )
    if name in ("medusa", "blockwise"):
        heads = _parallel_heads(name, config, len(ids), settings, known)
        _name_tokens(heads, ids)
        return ParallelObjective(heads.to(ids.device), tables, ids, loss=settings.loss, decay=decay)
    eagle = _eagle_head(name, config, weights, ids, settings, known)
    _name_tokens(eagle, ids)
    steps = (4 if name == "eagle3" else 1) if settings.unroll is None else settings.unroll
    return EagleObjective(
        eagle.to(ids.device),
        tables,
        ids,
        loss=settings.loss,
        steps=steps,
        decay=decay,
        dropout=settings.dropout or 0.0,
    )


def slots_of(name: HeadName, settings: HeadSettings, known: KnownHead | None) -> int:
    """Future tokens that are guessed at once."""
    if settings.slots is not None:
        return settings.slots
    if known is not None and known.config.slots:
        return known.config.slots
    return {"dflash": _BLOCK_SLOTS, PARALLEL_KIND: _MASKED_SLOTS}.get(name, _SLOTS)


def _parallel_heads(
    name: HeadName, config: ModelConfig, draft_vocab_size: int, settings: HeadSettings, known: KnownHead | None
) -> ParallelHeads:
    """New Medusa or blockwise heads, of the shape of the ``known`` ones if they are to begin from these."""
    begun = known.config if isinstance(known, ParallelHeads) else None
    return ParallelHeads(
        ParallelConfig(
            kind="medusa" if name == "medusa" else "blockwise",
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            draft_vocab_size=draft_vocab_size,
            slots=slots_of(name, settings, known),
            num_layers=settings.residual_blocks or (_RESIDUAL_BLOCKS if begun is None else begun.num_layers),
            output_maps=name == "medusa" if begun is None else begun.output_maps,
            reads_token=name == "medusa" if settings.reads_token is None else settings.reads_token,
        )
    )


def _block_head(
    config: ModelConfig, weights: DecoderWeights, ids: Tensor, settings: HeadSettings, known: KnownHead | None
) -> BlockHead:
    """A new block head; like the ``known`` one, if it is to begin from that, but for what may differ."""
    layers = settings.layers if isinstance(settings.layers, int) else None
    slots = slots_of("dflash", settings, known)
    if isinstance(known, BlockHead):
        begun = known.config
        size = slots + begun.block_size - begun.slots
        shape = replace(begun, num_layers=layers or begun.num_layers, draft_vocab_size=len(ids), block_size=size)
    else:
        shape = block_config(config, slots, layers or _BLOCK_LAYERS, _mask_token(config, ids), len(ids))
    size = shape.slots
    if settings.root_speaks is not None:
        shape = replace(shape, root_speaks=settings.root_speaks, block_size=size + (not settings.root_speaks))
    causal = shape.causal if settings.causal is None else settings.causal
    rank = shape.markov_rank if settings.markov_rank is None else settings.markov_rank
    sure = shape.confidence if settings.confidence is None else settings.confidence
    shape = replace(shape, causal=causal, markov_rank=rank, confidence=sure, confidence_reads_token=sure and rank > 0)
    head = BlockHead(shape)
    with torch.no_grad():
        # As in ``_eagle_head``.
        head.norm.weight.copy_(_FIRST_SURENESS * (weights.final_norm.weight + config.norm_offset))
        if shape.own_output:
            head.lm_head.weight.copy_(weights.head.weight[ids.cpu()])
    if isinstance(known, BlockHead):
        head.embedding = known.embedding
    return head


def _mask_token(config: ModelConfig, ids: Tensor) -> int:
    """What masks look like: a token that the text never holds, or hardly ever."""
    rare = torch.ones(config.vocab_size, dtype=torch.bool)
    rare[ids.cpu()] = False
    return int(rare.nonzero().max()) if rare.any() else config.vocab_size - 1


def _eagle_layers(settings: HeadSettings, known: KnownHead | None) -> int:
    """Decoder layers of an EAGLE head."""
    if isinstance(settings.layers, int):
        return settings.layers
    return known.config.num_layers if isinstance(known, EagleHead) else 1


def _eagle_head(
    name: HeadName,
    config: ModelConfig,
    weights: DecoderWeights,
    ids: Tensor,
    settings: HeadSettings,
    known: KnownHead | None,
) -> EagleHead:
    """A new EAGLE head; EAGLE-3's output head and final norm begin as the target's own. P-EAGLE's is like the ``known``
    one, if it is to begin from that, whose norms others may have chosen."""
    fused, layers = name != "eagle", _eagle_layers(settings, known)
    shape = eagle_config(config, "eagle3" if fused else "eagle", len(ids), layers)
    if name == PARALLEL_KIND:
        if isinstance(known, EagleHead):
            shape = replace(known.config, draft_vocab_size=len(ids), num_layers=layers)
        mask = shape.mask_token_id if shape.slots else _mask_token(config, ids)
        shape = replace(shape, slots=slots_of(name, settings, known), mask_token_id=mask)
    head = EagleHead(shape)
    if name == PARALLEL_KIND and isinstance(known, EagleHead):
        head.embedding = known.embedding
    if fused:
        with torch.no_grad():
            # What the target's own head makes of its own final norm is the best guess there is.
            head.lm_head.weight.copy_(weights.head.weight[ids.cpu()])
            # But a head that knows nothing yet must not be sure of it, or it spends its first steps on forgetting that
            # (docs/experiments/training.md, 0005).
            head.norm.weight.copy_(_FIRST_SURENESS * (weights.final_norm.weight + config.norm_offset))
    return head


def _name_tokens(head: EagleHead | BlockHead | ParallelHeads, ids: Tensor) -> None:
    """Let a head of a reduced vocabulary know which tokens it can say."""
    if head.config.reduced:
        head.d2t.copy_(ids.cpu() - torch.arange(len(ids)))
