"""Writing heads, in Headstart's format or in other programs'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from headstart.drafting.head_files.loading import Head, kind_of
from headstart.drafting.heads.files import RECORD_KEY, write_description, write_head
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.files import BlockFormat, block_tensors, describe_block
from headstart.drafting.methods.dflash.head import KIND as BLOCK_KIND
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.files import EagleFormat, describe_eagle, eagle_tensors
from headstart.drafting.methods.eagle.head import PARALLEL_KIND, EagleHead
from headstart.drafting.methods.lookahead_embeddings.head import KIND as LOOKAHEAD_KIND
from headstart.drafting.methods.lookahead_embeddings.head import LookaheadEmbeddings, describe_lookahead
from headstart.drafting.methods.medusa.files import KIND_KEY, describe_medusa, describe_parallel, medusa_tensors
from headstart.drafting.methods.medusa.head import ParallelHeads
from headstart.errors import CheckpointError
from headstart_train.files.serving_formats import ServingFormat, describe_for, tensors_for

ExportFormat = Literal["speculators", "deepspec", "eagle", "eagle3", "sglang", "specforge", "medusa"]


def save_head(
    head: Head, directory: Path, record: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None
) -> None:
    """Write a head in Headstart's format; an EAGLE head as SafeAILab does, without the target's embedding, a block head
    as z-lab does.

    Args:
        record: what to keep about its training, as JSON values.
        dtype: of the matrices; None: as they are.
    """
    description: dict[str, Any]
    if isinstance(head, EagleHead):
        kind = head.config.variant
        description, tensors = describe_eagle(head, kind), eagle_tensors(head, kind)
    elif isinstance(head, BlockHead):
        description, tensors = describe_block(head, "dflash"), block_tensors(head, "dflash")
    elif isinstance(head, LookaheadEmbeddings):
        description, tensors = {KIND_KEY: LOOKAHEAD_KIND, **describe_lookahead(head)}, head.state_dict()
    else:
        description, tensors = describe_parallel(head), head.state_dict()
    if record is not None:
        description[RECORD_KEY] = dict(record)
    write_head(directory, description, _cast(tensors, dtype), {})


def export_head(head: Head, format_name: ExportFormat, directory: Path, tables: TargetTables, target: str) -> None:
    """Write a head as other programs read it.

    Args:
        format_name: speculators (EAGLE-1 and 3, P-EAGLE, DFlash, DSpark), deepspec (DSpark), eagle (EAGLE-1), eagle3,
            sglang (EAGLE-3), specforge
            (EAGLE-3, DFlash) or medusa.
        tables: the target's, which these formats hold in part.
        target: its name.

    Raises:
        CheckpointError: the format is not for heads of this kind, or has no place for something that this one does.
    """
    if format_name == "medusa" and isinstance(head, ParallelHeads):
        tensors = medusa_tensors(head, tables.head)
        directory.mkdir(parents=True, exist_ok=True)
        torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "medusa_lm_head.pt")
        write_description(directory, describe_medusa(head, target))
        return
    if isinstance(head, EagleHead) and format_name in _KINDS[head.config.kind]:
        if format_name in ("sglang", "specforge"):
            serving: ServingFormat = format_name
            write_head(directory, describe_for(serving, head), tensors_for(serving, head, tables.embedding), {})
            return
        kind: EagleFormat = format_name  # type: ignore[assignment]
        if kind == "speculators" and head.config.variant == "eagle" and head.config.num_layers > 1:
            raise CheckpointError(
                f"speculators has EAGLE-1 heads of one layer, this one has {head.config.num_layers}; choose eagle."
            )
        embedding = tables.embedding.to(torch.float32) if format_name != "eagle3" else None
        write_head(directory, describe_eagle(head, kind, target), eagle_tensors(head, kind, embedding), {})
        return
    if isinstance(head, BlockHead) and format_name in _KINDS[BLOCK_KIND]:
        forms: dict[str, BlockFormat] = {"speculators": "speculators", "deepspec": "deepspec"}
        form, config = forms.get(format_name, "dflash"), head.config
        extended = config.root_speaks or config.markov_rank > 0 or config.confidence
        if form == "dflash" and (config.reduced or extended):
            raise CheckpointError(
                f"{format_name} has DFlash heads that say every token, from the first mask on, and no Markov factor or "
                "confidence; train one with --draft-vocab 0, or choose speculators."
            )
        write_head(directory, describe_block(head, form, target), block_tensors(head, form, tables), {})
        return
    found = kind_of(head)
    others = _KINDS.get(found, ())
    mend = f"; choose {' or '.join(others)}" if others else ""
    raise CheckpointError(f"a head of kind {found!r} has no form in the format {format_name!r}{mend}.")


_KINDS = {
    "eagle": ("eagle", "speculators"),
    "eagle3": ("eagle3", "speculators", "sglang", "specforge"),
    PARALLEL_KIND: ("eagle3", "speculators"),
    BLOCK_KIND: ("speculators", "specforge", "deepspec"),
    "medusa": ("medusa",),
}


def _cast(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    return {
        name: tensor.to(dtype) if dtype is not None and tensor.dim() > 1 and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
