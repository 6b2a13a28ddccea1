"""Writing heads, in Headstart's format or in other programs'."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.files import RECORD_KEY
from headstart.drafting.heads.formats import OWN, TrainedHead, WrittenHead, no_place
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.method import HeadFiles, brought_head_files, head_files
from headstart_train.files.tensors import write_description, write_head


def save_head(
    head: TrainedHead, directory: Path, record: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None
) -> None:
    """Write a head in Headstart's format; an EAGLE head as SafeAILab does, without the target's embedding, a block head
    as z-lab does.

    Args:
        record: what to keep about its training, as JSON values.
        dtype: of the matrices; None: as they are.
    """
    written = _written(head, OWN, None, "")
    if record is not None:
        written.description[RECORD_KEY] = dict(record)
    write_head(directory, written.description, _cast(written.tensors, dtype), {})


def export_head(head: TrainedHead, format_name: str, directory: Path, tables: TargetTables, target: str) -> str:
    """Write a head as other programs read it; what of it the format has no place for, in words.

    Args:
        format_name: one of those that the kind of head has.
        tables: the target's, which these formats hold in part.
        target: its name.

    Raises:
        CheckpointError: the format is not for heads of this kind, or has no place for something that this one does.
    """
    formats = _files_of(head).exports[head.kind]
    if format_name not in formats:
        raise no_place(head.kind, format_name, formats)
    written = _written(head, format_name, tables, target)
    if written.pickled_file:
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in written.tensors.items()}
        torch.save(tensors, directory / written.pickled_file)
        write_description(directory, written.description)
    else:
        write_head(directory, written.description, written.tensors, {})
    return written.left_out


def _files_of(head: TrainedHead) -> HeadFiles:
    return next(files for files in (*head_files(), *brought_head_files()) if head.kind in files.exports)


def _written(head: TrainedHead, form: str, tables: TargetTables | None, target: str) -> WrittenHead:
    written: WrittenHead = import_module(_files_of(head).module).write(head, form, tables, target)
    return written


def _cast(tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> dict[str, Tensor]:
    return {
        name: tensor.to(dtype) if dtype is not None and tensor.dim() > 1 and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
