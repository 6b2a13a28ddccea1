"""Block heads as z-lab, DeepSpec and vLLM's speculators describe them and name their tensors (``files``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from headstart.drafting.heads.formats import OWN, TrainedHead, WrittenHead
from headstart.drafting.heads.layer_format import describe_layers, describe_windows
from headstart.drafting.heads.speculators import SPECULATORS_VERSION, speculators_config
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockConfig, BlockHead
from headstart.errors import CheckpointError

BlockFormat = Literal["dflash", "speculators", "deepspec"]
DEEPSPEC_ARCHITECTURE = "Qwen3DSparkModel"
SPECULATORS_DSPARK = "dspark"
"""What speculators calls a block head with a Markov factor or a confidence."""
SPECULATORS_SECOND, SECOND_ARCHITECTURE = "dflash2", "DFlash2DraftModel"
BEFORE = "markov_head.markov_w1.weight"
NESTED = "dflash_config"
"""Entry of z-lab's ``config.json`` by which it is told from others."""
LAYER_IDS = "aux_hidden_state_layer_ids"
_SPECULATORS_ARCHITECTURES = {
    "dflash": "DFlashSpeculator",
    SPECULATORS_DSPARK: "DSparkSpeculator",
    SPECULATORS_SECOND: SECOND_ARCHITECTURE,
}


def write(head: TrainedHead, form: str, tables: TargetTables | None, verifier: str) -> WrittenHead:
    """A head in one of the formats; Headstart's own folders are as z-lab's, as SpecForge has them, too.

    Raises:
        CheckpointError: the format has no place for something that this head does.
    """
    assert isinstance(head, BlockHead)
    config = head.config
    kind: BlockFormat = "dflash" if form in (OWN, "specforge") else form  # type: ignore[assignment]
    extended = config.root_speaks or config.chained or config.confidence or config.sinks
    if form == "specforge" and (config.reduced or extended):
        raise CheckpointError(
            f"{form} has DFlash heads that say every token, from the first mask on, and no Markov factor, "
            "confidence or attention sinks; train one with --draft-vocab 0, or choose speculators."
        )
    return WrittenHead(describe_block(head, kind, verifier), block_tensors(head, kind, tables))


def describe_block(head: BlockHead, kind: BlockFormat, verifier: str = "") -> dict[str, Any]:
    """``config.json`` of a head; ``verifier``: the target's name, for speculators.

    Raises:
        CheckpointError: the format has no place for something that this head does.
    """
    config = head.config
    layer = describe_layers(config, "qwen3") | describe_windows(config)
    if kind == "deepspec":
        return _describe_for_deepspec(config, layer)
    if kind == "dflash":
        nested: dict[str, Any] = {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": [tap - 1 for tap in config.taps],
        }
        nested |= {"sample_from_anchor": True} if config.root_speaks else {}
        nested |= {"causal": True} if config.causal else {}
        nested |= {"causal_windows": True} if config.causal_windows else {}
        nested |= {"markov_rank": config.markov_rank} if config.markov_rank else {}
        nested |= {"attention_sink_bias": True} if config.sinks else {}
        nested |= _describe_confidence(config) | _describe_second(config)
        return {
            "architectures": [SECOND_ARCHITECTURE if config.selector_rank else "DFlashDraftModel"],
            **layer,
            "draft_vocab_size": config.draft_vocab_size,
            "target_hidden_size": config.target_hidden_size,
            "block_size": config.block_size,
            NESTED: nested,
        }
    if config.causal or config.sinks:
        what = "causal blocks" if config.causal else "attention sinks"
        raise CheckpointError(f"speculators has no block heads with {what}, as this one has; use it as it is.")
    extended = config.markov_rank > 0 or config.confidence
    algorithm = SPECULATORS_DSPARK if extended else SPECULATORS_SECOND if config.selector_rank else "dflash"
    more = {"markov_rank": config.markov_rank, "markov_head_type": "vanilla"} | _describe_confidence(config)
    return {
        "speculators_model_type": algorithm,
        "speculators_version": SPECULATORS_VERSION,
        "architectures": [_SPECULATORS_ARCHITECTURES[algorithm]],
        **(more if extended else {}),
        **_describe_second(config),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "block_size": config.block_size,
        LAYER_IDS: list(config.taps),
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.root_speaks,
        # vLLM 0.33 takes false for causal blocks in all layers, sliding or not.
        "sliding_window_non_causal": not config.causal_windows,
        "speculators_config": speculators_config(algorithm, config.slots, verifier),
        "transformer_layer_config": layer,
    }


def _describe_second(config: BlockConfig) -> dict[str, Any]:
    """What DFlash 2 has besides."""
    more = {"conv_kernel_size": config.conv_taps, "conv_group_size": config.conv_group} if config.conv_taps else {}
    if config.selector_rank:
        more |= {"selector_rank": config.selector_rank, "selector_top_k": config.selector_top}
    return more


def _describe_confidence(config: BlockConfig) -> dict[str, Any]:
    if not config.confidence:
        return {}
    return {"enable_confidence_head": True, "confidence_head_with_markov": config.confidence_reads_token}


def _describe_for_deepspec(config: BlockConfig, layer: Mapping[str, Any]) -> dict[str, Any]:
    lacking = {
        "a reduced vocabulary": config.reduced,
        "causal blocks": config.causal,
        "a root that is silent": not config.root_speaks,
        "windows": any(config.windows),
        "attention sinks": config.sinks,
        "convolutions or a selector of paths": config.conv_taps > 0 or config.selector_rank > 0,
    }
    if any(lacking.values()):
        what = next(name for name, there in lacking.items() if there)
        raise CheckpointError(
            f"DeepSpec has no heads with {what}, as this one has; train one with dspark --draft-vocab 0."
        )
    return {
        "architectures": [DEEPSPEC_ARCHITECTURE],
        **layer,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": [tap - 1 for tap in config.taps],
        "layer_types": ["full_attention"] * config.num_layers,
        "num_anchors": 512,
        "markov_rank": config.markov_rank,
        **({"markov_head_type": "vanilla"} if config.markov_rank else {}),
        "enable_confidence_head": config.confidence,
        **_describe_confidence(config),
    }


def block_tensors(head: BlockHead, kind: BlockFormat, tables: TargetTables | None = None) -> dict[str, Tensor]:
    """A head's tensors by the names of a format.

    Args:
        tables: the target's, for speculators, whose files hold the output rows of a reduced vocabulary, and DeepSpec,
            whose hold both.
    """
    tensors = dict(head.state_dict())
    if head.embedding is not None:
        tensors["embed_tokens.weight"] = head.embedding
    if kind == "deepspec":
        assert tables is not None
        tensors.setdefault("embed_tokens.weight", tables.embedding.float())
        tensors.setdefault("lm_head.weight", tables.head.detach().float())
    if kind == "speculators" and head.config.reduced and head.config.markov_rank:
        known = tensors[BEFORE]
        tensors[BEFORE] = known.new_zeros(head.config.vocab_size, known.shape[1])
        tensors[BEFORE][head.target_ids.to(known.device)] = known
    if kind == "speculators" and head.config.reduced:
        assert tables is not None
        tensors["lm_head.weight"] = head.mapped_rows(tables.head).detach().float()
        said = torch.zeros(head.config.vocab_size, dtype=torch.bool)
        said[head.target_ids.cpu()] = True
        tensors["t2d"] = said
    return tensors
