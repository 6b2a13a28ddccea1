"""What the formats of trained heads say of themselves, whatever a head is.

The module that a method names in its ``HEAD_FILES`` has three functions::

    find(files: HeadFolder) -> FoundHead | None           whether files are heads of this method
    read(found: FoundHead, files: HeadFolder, tensors: Mapping[str, Tensor], target: ModelConfig) -> TrainedHead
    write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead

and ``SPECULATORS``, a type of heads of vLLM's speculators -> its kind, where it reads such files. ``write`` is asked
for ``OWN``, or for a format in ``HEAD_FILES.exports`` of the head's kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headstart.errors import CheckpointError

KIND_KEY = "headstart_head"
"""Entry of ``config.json`` that names the kind of a head in a format of Headstart's own."""
SPECULATORS_KEY = "speculators_model_type"
UNBUILT = {
    "domino": "Domino (a recurrent correction of the guesses)",
    "xpress": "XPress (a refiner over the whole block)",
    "lilicorr": "LiLiCorr (a lattice of candidates)",
    "laguna": "Laguna (gated attention)",
    "uno": "UNO (a LoRA that is added to the rows of noise tokens alone, beside rows of the target itself)",
    "eagle4": "EAGLE-4 (its layers are not published)",
}
"""Words in names and descriptions of others' heads -> what of them is not built here."""
MOST_SLOTS = 64
"""Tokens that one pass of a head guesses at most."""
OWN = "headstart"
"""The form that Headstart's own folders have."""


class TrainedHead(nn.Module):
    """The trained part of a drafter; its parameters bear the names that files have for them."""

    window: int | None = None
    """How far it is best let look back over a text, in positions, where its files say so."""
    found: str = ""
    """Why it guesses though nobody has named it, the beginning of a sentence."""

    @property
    def kind(self) -> str:
        """What ``headstart train`` calls such a head."""
        raise NotImplementedError


class SayableTokens(Protocol):
    """Of a head's configuration, the tokens that it says."""

    @property
    def slots(self) -> int:
        """How many one pass guesses; 0: one, and a step for each further one."""
        ...

    @property
    def draft_vocab_size(self) -> int:
        """How many."""
        ...

    @property
    def reduced(self) -> bool:
        """They are not all of the target's."""
        ...


class SpeakingHead(TrainedHead):
    """A head that says tokens by itself, all of the target's or some of them, and that a training may begin from."""

    config: SayableTokens
    d2t: Tensor
    """int64 [draft vocab], of a head that says some: target id of draft id j is ``j + d2t[j]``."""

    @property
    def target_ids(self) -> Tensor:
        """int64 [draft vocab] target id of each draft id."""
        ids = torch.arange(self.config.draft_vocab_size, device=next(self.parameters()).device)
        return ids + self.d2t if self.config.reduced else ids

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return 0

    def may_begin_from(self, known: SpeakingHead) -> bool:
        """Whether the weights of another head fit where both have the same parameters."""
        raise NotImplementedError


@dataclass(frozen=True)
class HeadFolder:
    """A head on disk before its tensors are read."""

    path: Path
    description: Mapping[str, Any]
    """``config.json``."""
    names: Collection[str]
    """Of its tensors, as far as they are known before these are read."""

    @property
    def source(self) -> str:
        """What errors call it."""
        return str(self.path)


@dataclass(frozen=True)
class FoundHead:
    """What a method takes files for."""

    form: str
    """The format, as the method calls it."""
    kind: str
    by_tensors: bool = False
    """Told by names of tensors alone: whoever knows the description knows better."""


@dataclass(frozen=True)
class WrittenHead:
    """A head as a format has it."""

    description: dict[str, Any]
    tensors: Mapping[str, Tensor]
    pickled_file: str = ""
    """Name of the older kind of file that the tensors go to; empty: to safetensors."""
    left_out: str = ""
    """What of the head the format has no place for, and the head can do without."""


def no_place(kind: str, form: str, others: Collection[str]) -> CheckpointError:
    """The error of a head that a format has no form for; ``others``: formats that have one."""
    mend = f"; choose {' or '.join(others)}" if others else ""
    return CheckpointError(f"a head of kind {kind!r} has no form in the format {form!r}{mend}.")
