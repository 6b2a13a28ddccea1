"""Medusa and blockwise heads in files: Medusa's own format, and Headstart's for what that cannot hold.

Medusa (FasterDecoding/Medusa): ``{slot}.{block}.linear.{weight,bias}``, then ``{slot}.{num_layers}.weight``, the
slot's own output head over the whole vocabulary. Headstart's: the module's own names, a reduced vocabulary allowed,
the target's output head not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from headstart.drafting.heads.files import load_strictly
from headstart.drafting.heads.formats import KIND_KEY, OWN, FoundHead, HeadFolder, TrainedHead, WrittenHead
from headstart.drafting.heads.tables import TargetTables
from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families.fields import Fields
from headstart_lab.methods.medusa import NAMES
from headstart_lab.methods.medusa.head import MEDUSA, ParallelConfig, ParallelHeads, ParallelKind

_FORM = "medusa"
_MEDUSA_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.(?:weight|bias)|weight)")


def find(files: HeadFolder) -> FoundHead | None:
    """Whether a folder holds heads of these kinds; any kind of Headstart's that nobody else knows is one of them."""
    description = files.description
    if KIND_KEY in description:
        return FoundHead(OWN, str(description[KIND_KEY]), by_tensors=True)
    named = any((files.path / name).exists() for name in NAMES)
    return FoundHead(_FORM, MEDUSA) if named or "medusa_num_heads" in description else None


def read(found: FoundHead, files: HeadFolder, tensors: Mapping[str, Tensor], target: ModelConfig) -> ParallelHeads:
    """See ``read_parallel`` and ``read_medusa``."""
    if found.form == OWN:
        return read_parallel(files.description, tensors, target, files.source)
    return read_medusa(tensors, target, files.source)


def write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead:
    """Heads in one of both formats.

    Raises:
        CheckpointError: as ``medusa_tensors``.
    """
    assert isinstance(head, ParallelHeads)
    if form == OWN:
        return WrittenHead(describe_parallel(head), head.state_dict())
    assert tables is not None
    left_out = "what reads the last token" if head.config.reads_token else ""
    tensors = medusa_tensors(head, tables.head)
    return WrittenHead(describe_medusa(head, verifier), tensors, NAMES[-1], left_out)


def read_parallel(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], target: ModelConfig, source: str
) -> ParallelHeads:
    """Heads in Headstart's format.

    Raises:
        CheckpointError: as ``eagle_format.read_eagle``.
    """
    fields = Fields(description, source)
    config = ParallelConfig(
        kind=cast(ParallelKind, fields.text(KIND_KEY, "")),
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        draft_vocab_size=fields.integer("draft_vocab_size"),
        slots=fields.integer("slots", maximum=64),
        num_layers=fields.integer("num_layers", 1, maximum=64),
        inner_size=fields.integer("inner_size", 0, minimum=0),
        own_heads=fields.flag("own_heads", False),
        output_maps=fields.flag("output_maps", False),
        reads_token=fields.flag("reads_token", False),
    )
    if config.kind not in ("medusa", "blockwise"):
        raise fields.bad(KIND_KEY, config.kind, "medusa or blockwise")
    if config.output_maps and (config.kind == "blockwise" or config.own_heads):
        raise fields.bad("output_maps", True, "false where there are own heads, and for blockwise")
    if config.reads_token and config.kind == "blockwise":
        raise fields.bad("reads_token", True, "false for blockwise")
    _check_target(config, target, source)
    heads = ParallelHeads(config)
    load_strictly(heads, tensors, source)
    ids = heads.target_ids
    if not (bool((ids >= 0).all()) and bool((ids < config.vocab_size).all())):
        raise CheckpointError(f"{source}: d2t leads to ids outside of the {config.vocab_size} tokens; fetch it again.")
    return heads


def describe_parallel(heads: ParallelHeads) -> dict[str, Any]:
    """``config.json`` in Headstart's format."""
    config = heads.config
    return {
        KIND_KEY: config.kind,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "slots": config.slots,
        "num_layers": config.num_layers,
        "inner_size": config.inner_size,
        "own_heads": config.own_heads,
        "output_maps": config.output_maps,
        "reads_token": config.reads_token,
    }


def read_medusa(tensors: Mapping[str, Tensor], target: ModelConfig, source: str) -> ParallelHeads:
    """Heads in Medusa's format. Their number is counted in the file: published descriptions say 2 where 5 are held.

    Raises:
        CheckpointError: as ``eagle_format.read_eagle``.
    """
    tensors = {name.removeprefix("medusa_head."): tensor for name, tensor in tensors.items()}
    places = {name: match for name in tensors if (match := _MEDUSA_NAME.fullmatch(name))}
    outputs = [match for match in places.values() if match[3] == "weight"]
    if not outputs:
        raise CheckpointError(f"{source} holds no Medusa head (no tensor named like 0.1.weight); fetch it again.")
    first = min(outputs, key=lambda match: int(match[1]))
    num_layers = int(first[2])
    vocab_size, hidden_size = tensors[first[0]].shape
    config = ParallelConfig(
        kind="medusa",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=vocab_size,
        slots=1 + max(int(match[1]) for match in places.values()),
        num_layers=num_layers,
        own_heads=True,
    )
    _check_target(config, target, source)
    heads = ParallelHeads(config)
    load_strictly(heads, {_from_medusa(name, num_layers): tensor for name, tensor in tensors.items()}, source)
    return heads


def describe_medusa(heads: ParallelHeads, base: str) -> dict[str, Any]:
    """``config.json`` in Medusa's format; ``base``: the target's name."""
    config = heads.config
    return {
        "model_type": "medusa",
        "medusa_num_heads": config.slots,
        "medusa_num_layers": config.num_layers,
        "base_model_name_or_path": base,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }


def medusa_tensors(heads: ParallelHeads, target_head: Tensor) -> dict[str, Tensor]:
    """Tensors by Medusa's names, an output head in each slot: ``target_head`` [vocab, hidden], after the slot's
    own matrix if it has one, or its own. What reads the token after the state is left out: the format has no place
    for it, and heads that were trained here guess without it, too.

    Raises:
        CheckpointError: they are no Medusa heads, or own heads cover a part of the vocabulary only.
    """
    config = heads.config
    if config.kind != "medusa" or (config.own_heads and config.reduced):
        raise CheckpointError("only Medusa heads over the whole vocabulary, or over the target's own head, fit Medusa.")
    tensors = {}
    for name, tensor in heads.state_dict().items():
        parts = name.split(".")
        if parts[0] == "blocks":
            tensors[".".join(parts[1:])] = tensor
    outputs = heads.own_outputs() if config.own_heads else [target_head] * config.slots
    if config.output_maps:
        outputs = [target_head.to(last.weight.dtype) @ last.weight for last in heads.output_maps()]
    for slot, output in enumerate(outputs):
        tensors[f"{slot}.{config.num_layers}.weight"] = output.detach().to(torch.float32).clone()
    return tensors


def _from_medusa(name: str, num_layers: int) -> str:
    match = _MEDUSA_NAME.fullmatch(name)
    if match is not None and match[3] == "weight" and int(match[2]) == num_layers:
        return f"heads.{match[1]}.weight"
    return f"blocks.{name}" if match is not None else name


def _check_target(config: ParallelConfig, target: ModelConfig, source: str) -> None:
    if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
        raise CheckpointError(
            f"{source} is made for a target of {config.hidden_size} elements and {config.vocab_size} tokens; "
            f"this one has {target.hidden_size} and {target.vocab_size}; name the model that it was trained for."
        )
    if config.draft_vocab_size > config.vocab_size:
        raise CheckpointError(
            f"{source}: draft_vocab_size is {config.draft_vocab_size}, more than the target's {config.vocab_size}."
        )
