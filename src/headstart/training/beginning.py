"""Beginning a training from a head that knows something already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from headstart.errors import ConfigError
from headstart.models.config import ModelConfig
from headstart.models.heads.eagle import EagleConfig, EagleHead
from headstart.models.heads.loading import load_head
from headstart.models.heads.parallel import ParallelConfig, ParallelHeads

_OUTPUTS = ("lm_head.", "heads.")
"""Matrices whose rows are tokens."""


@torch.no_grad()
def begin_from(head: nn.Module, directory: Path, target: ModelConfig) -> None:
    """Copy the weights of the head in ``directory``, of any format that is read, into ``head``.

    Draft vocabularies may differ: a token that only ``head`` says keeps the output row it has.

    Raises:
        ConfigError: the two are not of one kind and shape.
        CheckpointError: the directory holds no head for this target.
    """
    known = load_head(directory, target)
    if type(head) is not type(known) or not isinstance(known, EagleHead | ParallelHeads):
        raise ConfigError(f"{directory} holds another kind of head than the one to be trained; begin without it.")
    mine = cast(EagleHead | ParallelHeads, head)
    if _shape(mine) != _shape(known):
        raise ConfigError(f"the head in {directory} has another shape than the one to be trained; begin without it.")
    theirs = dict(known.named_parameters())
    to, of = _shared(mine.target_ids, known.target_ids)
    for name, parameter in mine.named_parameters():
        if name.startswith(_OUTPUTS):
            parameter[to] = theirs[name][of]
        else:
            parameter.copy_(theirs[name])


def _shape(head: EagleHead | ParallelHeads) -> EagleConfig | ParallelConfig:
    """All of its description but what it can say."""
    return replace(head.config, draft_vocab_size=head.config.vocab_size)


def _shared(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """int64 rows, in both, of the tokens that both say."""
    row = {token: index for index, token in enumerate(theirs.tolist())}
    pairs = [(index, row[token]) for index, token in enumerate(mine.tolist()) if token in row]
    to, of = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    return to, of
