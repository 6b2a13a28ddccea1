"""Trainings that begin from an existing head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.formats import SpeakingHead
from headstart.drafting.registry import trained_kinds
from headstart.errors import ConfigError
from headstart.models.config import ModelConfig

_OUTPUTS = ("lm_head.", "heads.", "markov_head.")
"""Matrices whose rows are tokens."""


_BRANCH_ENDS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""Of a decoder layer, what adds to the residual stream."""


def load_known(directory: Path, target: ModelConfig, kind: str) -> SpeakingHead:
    """A head to begin from, in any format that is read.

    Args:
        kind: of the head to be trained.

    Raises:
        ConfigError: the head is of another kind.
        CheckpointError: the directory holds no head for this target.
    """
    head = load_head(directory, target)
    if not isinstance(head, SpeakingHead):
        raise ConfigError(
            f"{directory} holds nothing that a training can begin from; name an EAGLE, DFlash or Medusa head."
        )
    if head.kind != kind and head.kind not in trained_kinds()[kind].begins_from:
        raise ConfigError(f"{directory} holds a head of kind {head.kind}; name one of kind {kind} to begin from.")
    return head


@torch.no_grad()
def begin_from(head: nn.Module, known: SpeakingHead) -> None:
    """Copy the weights of ``known`` into ``head``.

    Draft vocabularies may differ: tokens that only ``head`` can say keep its own output rows. So may what the head's
    method allows (``may_begin_from``), such as further layers, which change nothing at first.

    Raises:
        ConfigError: their shapes differ, or ``known`` has more layers.
    """
    if not isinstance(head, SpeakingHead) or not head.may_begin_from(known):
        raise ConfigError("the head to begin from has another shape than the one to be trained; begin without it.")
    layers, known_layers = head.num_layers, known.num_layers
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


def _shared(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of both vocabularies: their rows in ``mine`` and in ``theirs``, int64."""
    row = {token: index for index, token in enumerate(theirs.tolist())}
    pairs = [(index, row[token]) for index, token in enumerate(mine.tolist()) if token in row]
    to, of = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    return to, of
