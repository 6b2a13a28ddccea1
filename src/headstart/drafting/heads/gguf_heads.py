"""Heads in GGUF, as llama.cpp writes them: their metadata as a configuration of Hugging Face's, tensors by its names.

Read key for key in llama.cpp of August 2026 (``src/models/eagle3.cpp``, ``src/models/dflash.cpp``, ``conversion/``). A
layer of the target is numbered by what reads it, as we do; draft ids lead to target ids themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.formats import HeadFolder
from headstart.errors import CheckpointError
from headstart.models.families.fields import Fields
from headstart.models.families.gguf import GGUF_LAYER, NAMES
from headstart.models.families.llama import HF_LAYER
from headstart.models.families.rope import rope_of

ARCHITECTURE = "general.architecture"
"""The entry that says what a file is."""
FREQUENCIES = "rope_freqs.weight"
_NAMES = {
    GGUF_LAYER[role].removeprefix("blk.{i}."): name.removeprefix("layers.{i}.") for role, name in HF_LAYER.items()
}
"""Of a layer's parts."""
_ENDS = {"output_norm": "norm", "output": "lm_head", "token_embd": "embed_tokens"}


def fields_of(files: HeadFolder) -> Fields:
    """The entries of the file's own architecture."""
    return Fields(files.description, files.source, f"{files.description[ARCHITECTURE]}.", NAMES)


def described(files: HeadFolder, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A head's layers and vocabulary as ``config.json`` has them.

    Raises:
        CheckpointError: an entry is missing or senseless, or a tensor is a lone number, which tells nothing of sizes.
    """
    for name, tensor in tensors.items():
        if not tensor.dim():
            raise CheckpointError(f"{files.source}: {name} is a lone number; fetch the head again.")
    fields = fields_of(files)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", hidden // heads)
    tokens = files.description.get("tokenizer.ggml.tokens")
    rope = rope_of(fields, head_dim)
    return {
        "hidden_size": hidden,
        "intermediate_size": fields.integer("intermediate_size"),
        "num_hidden_layers": fields.integer("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "rms_norm_eps": fields.number("rms_norm_eps"),
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "max_position_embeddings": fields.get("max_position_embeddings"),
        "vocab_size": len(tokens) if isinstance(tokens, list) else fields.integer("vocab_size"),
    }


def target_layers(files: HeadFolder) -> list[int]:
    """The layers of the target whose inputs are read.

    Raises:
        CheckpointError: they are not named.
    """
    fields = fields_of(files)
    for key in ("target_layers", "extract_layers"):
        found = fields.token_ids(key)
        if found:
            return list(found)
    raise fields.missing("target_layers")


def named(tensors: Mapping[str, Tensor], more: Mapping[str, str], source: str) -> dict[str, Tensor]:
    """Tensors by the names of Hugging Face's files, as far as they have any; others keep theirs.

    Args:
        more: further names, without their endings, of a layer's parts or of the whole -> theirs.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(FREQUENCIES):
            continue
        layer, rest = "", name
        if name.startswith("blk."):
            _, number, rest = name.split(".", 2)
            layer = f"layers.{number}."
        part, _, ending = rest.rpartition(".")
        known = (_NAMES if layer else _ENDS) | dict(more)
        part, ending = (rest, "") if rest in known or part not in known else (part, f".{ending}")
        found[f"{layer}{known.get(part, part)}{ending}"] = tensor
    if (ids := found.pop("d2t", None)) is not None:
        if ids.dim() != 1 or ids.is_floating_point():
            raise CheckpointError(f"{source}: d2t is no list of token ids; fetch it again.")
        found["d2t"] = ids.long() - torch.arange(len(ids))
    return found


def frequency_factors(tensors: Mapping[str, Tensor], dim: int, source: str) -> tuple[float, ...]:
    """What divides the frequencies of a rotation of ``dim`` dimensions; empty: nothing does.

    Raises:
        CheckpointError: there are more or fewer of them, or senseless ones.
    """
    for name, tensor in tensors.items():
        if name.endswith(FREQUENCIES):
            factors = tensor.float()
            if factors.shape != (dim // 2,) or not bool((factors > 0).all()) or not bool(factors.isfinite().all()):
                raise CheckpointError(f"{source}: {name} is no list of {dim // 2} positive numbers; fetch it again.")
            return tuple(factors.tolist())
    return ()
