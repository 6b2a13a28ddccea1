"""EAGLE heads as SafeAILab and vLLM's speculators describe them and name their tensors (``files``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from headstart.drafting.heads.formats import OWN, TrainedHead, WrittenHead
from headstart.drafting.heads.layer_format import describe_layers, describe_windows
from headstart.drafting.heads.speculators import SPECULATORS_VERSION, speculators_config
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import FIRST, THIRD, EagleConfig, EagleHead
from headstart.errors import CheckpointError

EagleFormat = Literal["eagle", "eagle3", "speculators"]

FIRST_LAYER, MIDLAYER = "layers.0.", "midlayer."
SPECULATORS_EAGLE1 = {"fc.": "fusion_fc.", FIRST_LAYER: "transformer."}
"""How our tensors' names begin -> how its do."""
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
LLAMA_LAYER = "LlamaDecoderLayer"
SPECULATORS_PARALLEL = "peagle"
MASK = "ptd_token_id"
"""Of a P-EAGLE head in SafeAILab's form, as vLLM reads it; speculators has "mask_token_id"."""
DEPTHS = "para_depths"
"""Tokens that one pass guesses; speculators' own heads say so by the guesses of a round."""


def write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead:
    """A head in one of the formats; Headstart's own folders are as SafeAILab's, without the target's embedding.

    Raises:
        CheckpointError: the format has no place for something that this head does.
    """
    # Imported here: these forms are turns of the ones here.
    from headstart.drafting.methods.eagle.serving_formats import SERVING_FORMATS, describe_for, tensors_for

    assert isinstance(head, EagleHead)
    config = head.config
    if form == OWN:
        return WrittenHead(describe_eagle(head, config.variant), eagle_tensors(head, config.variant))
    assert tables is not None
    if form in SERVING_FORMATS:
        return WrittenHead(describe_for(form, head), tensors_for(form, head, tables))
    if form == "speculators" and config.variant == FIRST and config.num_layers > 1:
        raise CheckpointError(
            f"speculators has EAGLE-1 heads of one layer, this one has {config.num_layers}; choose eagle."
        )
    if form == THIRD and (config.head_norms or any(config.windows)):
        raise CheckpointError(
            "SafeAILab's form has no heads that norm queries and keys, or whose layers have windows, as this one; "
            "choose speculators."
        )
    kind: EagleFormat = form  # type: ignore[assignment]
    embedding = tables.embedding.to(torch.float32) if kind != "eagle3" else None
    tensors = eagle_tensors(head, kind, embedding)
    if config.borrows_output:
        tensors["lm_head.weight"] = head.output_rows(tables.head).float()
    return WrittenHead(describe_eagle(head, kind, verifier), tensors)


def describe_eagle(head: EagleHead, kind: EagleFormat, verifier: str = "") -> dict[str, Any]:
    """``config.json`` of a head; ``verifier``: the target's name, for speculators.

    Raises:
        CheckpointError: speculators has no place for something that this head does.
    """
    config = head.config
    layer = describe_layers(config, "qwen3" if config.head_norms else "llama") | describe_windows(config)
    flags = {name: getattr(config, name) for name in FLAGS}
    if kind == "eagle":
        return {"architectures": ["LlamaForCausalLM"], **layer, "bias": config.fc_bias}
    if kind == "eagle3":
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            **layer,
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "eagle_config": {LAYER_IDS: list(config.taps), "use_aux_hidden_state": True},
            **flags,
            **({MASK: config.mask_token_id, DEPTHS: config.slots} if config.slots else {}),
        }
    return _describe_for_speculators(config, layer, flags, verifier)


def _describe_for_speculators(
    config: EagleConfig, layer: Mapping[str, Any], flags: Mapping[str, bool], verifier: str
) -> dict[str, Any]:
    """``layer``: the head's layers as a Llama configuration; ``flags``: of EAGLE-3."""
    if config.variant == "eagle":
        own = {
            "architectures": ["EagleSpeculator", LLAMA_LAYER],
            "transformer_layer_architecture": LLAMA_LAYER,
            "layernorms": False,
            "fusion_bias": config.fc_bias,
        }
    else:
        own = {
            "architectures": ["PEagleSpeculator" if config.slots else "Eagle3Speculator"],
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            LAYER_IDS: list(config.taps),
            **flags,
        }
    algorithm: str = config.variant
    if config.slots:
        if config.fc_norm:
            raise CheckpointError(
                "speculators has no P-EAGLE heads with a norm for each layer that is read, as this one has; use it as "
                "it is."
            )
        algorithm = SPECULATORS_PARALLEL
        own = {name: value for name, value in own.items() if name not in ("fc_norm", "norm_output")}
        own["mask_token_id"] = config.mask_token_id
    return {
        "speculators_model_type": algorithm,
        "speculators_version": SPECULATORS_VERSION,
        **own,
        "speculators_config": speculators_config(algorithm, config.slots or 5, verifier),
        "transformer_layer_config": layer,
    }


def eagle_tensors(head: EagleHead, kind: EagleFormat, embedding: Tensor | None = None) -> dict[str, Tensor]:
    """A head's tensors by the names of a format.

    ``embedding``: the target's, for formats whose readers expect one in the file (SafeAILab's EAGLE-1 always has it,
    speculators' never).
    """
    if is_speculators_eagle1(kind, head.config):
        return {renamed(name, SPECULATORS_EAGLE1): tensor for name, tensor in head.state_dict().items()}
    names = {FIRST_LAYER: MIDLAYER} if kind == "eagle3" else {}
    tensors = {renamed(name, names): tensor for name, tensor in head.state_dict().items()}
    own = head.embedding if head.embedding is not None else embedding
    if own is not None:
        tensors["embed_tokens.weight"] = own
    if head.config.reduced:
        said = torch.zeros(head.config.vocab_size, dtype=torch.bool)
        said[head.target_ids.cpu()] = True
        tensors["t2d"] = said
    return tensors


def is_speculators_eagle1(kind: EagleFormat, config: EagleConfig) -> bool:
    """Whether it has the names of speculators' EAGLE-1."""
    return kind == "speculators" and config.variant == "eagle"


def renamed(name: str, beginnings: Mapping[str, str]) -> str:
    """A name that begins otherwise, where ``beginnings`` has how it begins."""
    for one, other in beginnings.items():
        if name.startswith(one):
            return other + name.removeprefix(one)
    return name
