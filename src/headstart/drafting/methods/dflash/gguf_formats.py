"""Block heads in GGUF (``heads.gguf_heads``): DFlash's and DSpark's, as z-lab's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headstart.drafting.heads.formats import HeadFolder
from headstart.drafting.heads.gguf_heads import described, fields_of, named, target_layers
from headstart.drafting.heads.layer_format import SLIDING
from headstart.drafting.methods.dflash.written_formats import BEFORE, NESTED
from headstart.models.families.fields import MAX_POSITIONS

ARCHITECTURES = ("dflash", "dspark")
_SINKS = "attn_sinks.weight"
_NAMES = {
    _SINKS: "self_attn.attention_sink_bias",
    "enc.output_norm": "hidden_norm",
    "markov_w1": BEFORE.removesuffix(".weight"),
    "markov_w2": "markov_head.markov_w2",
    "conf_proj": "confidence_head.proj",
    "selector_prev.weight": "candidate_selector.predecessor_codebook",
    "selector_next.weight": "candidate_selector.successor_codebook",
    "selector_hidden": "candidate_selector.hidden_projection",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj": "attention_conv.kernel_projection",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
}
_CANDIDATES = 16
"""Of DFlash 2's selector, where a file does not say."""


def describe_gguf(files: HeadFolder, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """``config.json`` of the same head.

    Raises:
        CheckpointError: an entry is missing or senseless, or a layer is of a kind that block heads here have not.
    """
    fields = fields_of(files)
    fields.refuse("hyper_connection_count", *range(1, 1 << 8), because="layers of DeepSeek V4")
    layers, outer = described(files, tensors), files.description
    windows = fields.optional_integer("sliding_window", minimum=0, maximum=MAX_POSITIONS)
    if windows:
        pattern = fields.get("sliding_window_pattern")
        count = layers["num_hidden_layers"]
        if not isinstance(pattern, list) or len(pattern) != count:
            raise fields.bad("sliding_window_pattern", pattern, f"a list of {count}, one for each layer")
        layers["layer_types"] = [SLIDING if each else "full_attention" for each in pattern]
        layers["sliding_window"] = windows
    chained = "markov_w1.weight" in tensors
    nested = {
        "block_size": fields.integer("block_size", 16),
        "mask_token_id": outer.get("tokenizer.ggml.mask_token_id"),
        "target_layer_ids": [layer - 1 for layer in target_layers(files)],
        "causal": fields.flag("attention.causal", False),
        "sample_from_anchor": fields.flag("sample_from_anchor", chained),
        "markov_rank": tensors["markov_w1.weight"].shape[-1] if chained else 0,
        "attention_sink_bias": f"blk.0.{_SINKS}" in tensors,
        "enable_confidence_head": "conf_proj.weight" in tensors,
        "confidence_head_with_markov": chained and _reads_token(tensors, layers["hidden_size"]),
        **_describe_second(tensors, fields.integer("selector_top_k", _CANDIDATES)),
    }
    return {
        **layers,
        "draft_vocab_size": len(tensors["d2t"]) if "d2t" in tensors else layers["vocab_size"],
        NESTED: nested,
    }


def gguf_tensors(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Tensors by z-lab's names."""
    return named(tensors, _NAMES, source)


def _describe_second(tensors: Mapping[str, Tensor], top: int) -> dict[str, int]:
    """What DFlash 2 has besides, as its tensors' shapes tell."""
    kernel, projection = tensors.get("blk.0.attn_conv_base"), tensors.get("blk.0.attn_conv_proj.weight")
    more = {}
    if kernel is not None and projection is not None and kernel.dim() == 3 and kernel.numel():
        groups = max(len(projection) // (2 * kernel.shape[1]), 1)
        more = {"conv_kernel_size": kernel.shape[1], "conv_group_size": kernel.shape[2] // groups}
    if "selector_hidden.weight" in tensors:
        more |= {"selector_rank": len(tensors["selector_hidden.weight"]), "selector_top_k": top}
    return more


def _reads_token(tensors: Mapping[str, Tensor], hidden: int) -> bool:
    """Whether the confidence reads more than a state."""
    return "conf_proj.weight" in tensors and tensors["conf_proj.weight"].shape[-1] > hidden
