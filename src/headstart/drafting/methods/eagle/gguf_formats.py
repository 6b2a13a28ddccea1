"""EAGLE-3 heads in GGUF (``heads.gguf_heads``), as SafeAILab's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headstart.drafting.heads.formats import HeadFolder
from headstart.drafting.heads.gguf_heads import described, fields_of, named, target_layers
from headstart.drafting.heads.layer_format import SLIDING
from headstart.models.families.fields import MAX_POSITIONS
from headstart.models.families.llama import in_halves

ARCHITECTURE = "eagle3"
_TURNING = (*("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias"), *("q_norm.weight", "k_norm.weight"))
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def describe_gguf(files: HeadFolder, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """``config.json`` of the same head.

    Raises:
        CheckpointError: an entry is missing or senseless.
    """
    fields = fields_of(files)
    layers = described(files, tensors)
    window = fields.optional_integer("sliding_window", minimum=0, maximum=MAX_POSITIONS)
    if window:
        layers |= {"sliding_window": window, "layer_types": [SLIDING] * layers["num_hidden_layers"]}
    return {
        **layers,
        "draft_vocab_size": len(tensors["d2t"]) if "d2t" in tensors else layers["vocab_size"],
        "target_hidden_size": fields.integer("target_hidden_size", layers["hidden_size"]),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": target_layers(files)},
        **{name: fields.flag(name, False) for name in _FLAGS},
    }


def gguf_tensors(tensors: Mapping[str, Tensor], head_dim: int, source: str) -> dict[str, Tensor]:
    """Tensors by SafeAILab's names. llama.cpp keeps the rows of queries and keys in pairs that turn together."""
    found = named(tensors, {"attn_norm_2": "hidden_norm", "enc.output_norm": "input_norm"}, source)
    return {
        name: in_halves(tensor, head_dim, head_dim)
        if name.endswith(_TURNING) and tensor.numel() and tensor.shape[0] % head_dim == 0
        else tensor
        for name, tensor in found.items()
    }
