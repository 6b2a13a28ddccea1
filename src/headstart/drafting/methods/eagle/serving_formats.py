"""EAGLE-3 heads as SGLang serves them and SpecForge trains them on: SafeAILab's form with a few turns of its own.

Read in SGLang 0.5.23 (``models/llama_eagle3.py``, ``models/llama.py``) and SpecForge of August 2026
(``modeling/draft/llama3_eagle.py``, ``export/``). Both number a layer by its output where vLLM, and we, name the layer
that reads it: their 1 is our 2. Both pass over what they do not know without a word, so what they cannot compute is
refused here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import THIRD, EagleConfig, EagleHead
from headstart.drafting.methods.eagle.written_formats import LAYER_IDS, describe_eagle, eagle_tensors
from headstart.errors import CheckpointError

SERVING_FORMATS = {"sglang": "SGLang", "specforge": "SpecForge"}


def describe_for(kind: str, head: EagleHead) -> dict[str, Any]:
    """``config.json`` of an EAGLE-3 head.

    Raises:
        CheckpointError: the program cannot compute such a head.
    """
    _check(kind, head.config)
    description = describe_eagle(head, THIRD)
    description["eagle_config"][LAYER_IDS] = [tap - 1 for tap in head.config.taps]
    if kind == "specforge":
        # There, "norm_output": false leaves the norm before the output head out; without the entry it is as usual.
        description = {name: value for name, value in description.items() if name != "norm_output" or value}
        description |= {"pad_token_id": None, "torch_dtype": "bfloat16"}
    return description


def tensors_for(kind: str, head: EagleHead, tables: TargetTables) -> dict[str, Tensor]:
    """Its tensors by their names there; ``tables``: the target's, which a file must hold in part."""
    tensors = eagle_tensors(head, THIRD, tables.embedding if kind == "specforge" else None)
    tensors.setdefault("lm_head.weight", head.output_rows(tables.head).float())
    vocab, said = head.config.vocab_size, head.config.draft_vocab_size
    # Both tables are always there.
    tensors.setdefault("d2t", torch.zeros(said, dtype=torch.int64))
    tensors.setdefault("t2d", torch.ones(vocab, dtype=torch.bool))
    if kind == "sglang":
        # SGLang's further layers read the layer below through the norm that the first has for the target's states.
        tensors = {
            name.replace("input_layernorm", "hidden_norm") if name.startswith("layers.") else name: tensor
            for name, tensor in tensors.items()
        }
    return tensors


def _check(kind: str, config: EagleConfig) -> None:
    name = SERVING_FORMATS[kind]
    faults = {
        "reads the residual after its norm (norm_before_residual)": config.norm_before_residual,
        "has biases in its attention": config.attention_bias,
        "norms queries and keys": config.head_norms,
        "has layers with windows": any(config.windows),
        "reads the embeddings themselves, for which there is no layer number": 0 in config.taps,
    }
    if kind == "specforge":
        faults |= {
            f"has {config.num_layers} layers": config.num_layers > 1,
            f"reads {len(config.taps)} layers of the target, not 3": len(config.taps) != 3,
            "has a norm over all features (norm_before_fc)": config.norm_before_fc,
        }
    for fault, is_there in faults.items():
        if is_there:
            raise CheckpointError(f"this head {fault}, which {name} cannot compute; choose speculators, for vLLM.")
