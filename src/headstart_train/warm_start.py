"""Trainings that begin from an existing head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.parallel import ParallelConfig, ParallelHeads
from headstart.drafting.methods.dflash.head import BlockConfig, BlockHead
from headstart.drafting.methods.eagle.head import EagleConfig, EagleHead
from headstart.drafting.registry import trained_kinds
from headstart.errors import ConfigError
from headstart.models.config import ModelConfig

_OUTPUTS = ("lm_head.", "heads.", "markov_head.")
"""Matrices whose rows are tokens."""


_BRANCH_ENDS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""Of a decoder layer, what adds to the residual stream."""

KnownHead = EagleHead | BlockHead | ParallelHeads


def load_known(directory: Path, target: ModelConfig, kind: str) -> KnownHead:
    """A head to begin from, in any format that is read.

    Args:
        kind: of the head to be trained.

    Raises:
        ConfigError: the head is of another kind.
        CheckpointError: the directory holds no head for this target.
    """
    head = load_head(directory, target)
    if not isinstance(head, EagleHead | BlockHead | ParallelHeads):
        raise ConfigError(
            f"{directory} holds nothing that a training can begin from; name an EAGLE, DFlash or Medusa head."
        )
    if head.kind != kind and head.kind not in trained_kinds()[kind].begins_from:
        raise ConfigError(f"{directory} holds a head of kind {head.kind}; name one of kind {kind} to begin from.")
    return head


@torch.no_grad()
def begin_from(head: nn.Module, known: KnownHead) -> None:
    """Copy the weights of ``known`` into ``head``.

    Draft vocabularies may differ: tokens that only ``head`` can say keep its own output rows. So may whether the last
    token is read: a head that begins to read it says at first what it said without. One that guesses several tokens in
    one pass may begin from an EAGLE-3 head, whose first guess it has. An EAGLE head or a block head may have further
    layers, which change nothing at first, the former other windows, and the blocks of the latter another length and
    view, and a Markov factor that adds nothing yet.

    Raises:
        ConfigError: their shapes differ, or ``known`` has more layers.
    """
    if type(head) is not type(known) or not _alike(_shape(head), _shape(known)):
        raise ConfigError("the head to begin from has another shape than the one to be trained; begin without it.")
    layers, known_layers = _layers(head), _layers(known)
    if layers < known_layers:
        raise ConfigError(
            f"the head to begin from has {known_layers} layers, the one to be trained {layers}; give at least as many."
        )
    theirs = dict(known.named_parameters())
    to, of = _shared(head.target_ids, known.target_ids)
    for name, parameter in head.named_parameters():
        if name.startswith(_OUTPUTS) and name in theirs:
            parameter[to.to(parameter.device)] = theirs[name][of].to(parameter.device)
        elif name in theirs and theirs[name].shape == parameter.shape:
            parameter.copy_(theirs[name])
        elif name.endswith(_BRANCH_ENDS):
            parameter.zero_()


def _alike(
    mine: EagleConfig | BlockConfig | ParallelConfig, theirs: EagleConfig | BlockConfig | ParallelConfig
) -> bool:
    """Whether two shapes are equal, a Markov factor and a confidence apart that only mine has."""
    if isinstance(mine, BlockConfig) and isinstance(theirs, BlockConfig):
        mine = replace(mine, confidence=False, confidence_reads_token=False)
        theirs = replace(theirs, confidence=False, confidence_reads_token=False)
        if not theirs.markov_rank:
            mine = replace(mine, markov_rank=0)
    return mine == theirs


def _layers(head: nn.Module) -> int:
    """Decoder layers; 0 where it has none."""
    return len(head.layers) if isinstance(head, EagleHead | BlockHead) else 0


def _shape(head: KnownHead) -> EagleConfig | BlockConfig | ParallelConfig:
    """Its configuration, apart from what may differ."""
    if isinstance(head, BlockHead):
        whole = head.config.vocab_size
        return replace(head.config, draft_vocab_size=whole, num_layers=1, block_size=2, causal=False, root_speaks=False)
    if isinstance(head, ParallelHeads):
        return replace(head.config, draft_vocab_size=head.config.vocab_size, reads_token=False)
    whole = head.config.vocab_size
    return replace(head.config, draft_vocab_size=whole, num_layers=1, windows=(), slots=0, mask_token_id=0)


def _shared(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of both vocabularies: their rows in ``mine`` and in ``theirs``, int64."""
    row = {token: index for index, token in enumerate(theirs.tolist())}
    pairs = [(index, row[token]) for index, token in enumerate(mine.tolist()) if token in row]
    to, of = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    return to, of
