"""Look-ahead embeddings in files: Headstart's own format alone (see ``heads.formats``)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headstart.drafting.heads.files import load_strictly
from headstart.drafting.heads.formats import KIND_KEY, OWN, FoundHead, HeadFolder, TrainedHead, WrittenHead
from headstart.drafting.heads.tables import TargetTables
from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import Fields
from headstart_lab.methods.lookahead_embeddings.head import KIND, MAX_SLOTS, LookaheadEmbeddings


def find(files: HeadFolder) -> FoundHead | None:
    """Whether a folder holds look-ahead embeddings."""
    return FoundHead(OWN, KIND) if files.description.get(KIND_KEY) == KIND else None


def read(
    found: FoundHead, files: HeadFolder, tensors: Mapping[str, Tensor], target: ModelConfig
) -> LookaheadEmbeddings:
    """Look-ahead embeddings.

    Raises:
        CheckpointError: an entry is missing or senseless, they are of another target's size, or tensors are missing,
            surplus or of another shape (all named).
    """
    fields = Fields(files.description, files.source)
    head = LookaheadEmbeddings(fields.integer("slots", maximum=MAX_SLOTS), fields.integer("hidden_size"))
    if head.embeddings.shape[1] != target.hidden_size:
        raise CheckpointError(
            f"{files.source} has embeddings of {head.embeddings.shape[1]} numbers, but the target's have "
            f"{target.hidden_size}; name embeddings that were trained for this target."
        )
    load_strictly(head, tensors, files.source)
    return head


def write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead:
    """Look-ahead embeddings as Headstart's folders have them."""
    assert isinstance(head, LookaheadEmbeddings)
    slots, hidden_size = head.embeddings.shape
    return WrittenHead({KIND_KEY: KIND, "slots": slots, "hidden_size": hidden_size}, head.state_dict())
