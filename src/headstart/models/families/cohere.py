"""Command-R of Cohere, 1 and 2, and Command A+, a mixture: attention and MLP side by side, layer norms without bias,
interleaved rotations.

Sources: the configuration and modelling files of transformers (models/cohere, cohere2, cohere2_moe); for GGUF
llama.cpp's converter and its src/models/cohere2moe.cpp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from headstart.models.config import FoldedConfig, HeadNorms, ModelConfig, NormsConfig, ResidualConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import Family, Gguf, without
from headstart.models.families.experts import (
    BY_EXPERT,
    count_of,
    first_dense,
    layout_with,
    shared,
    used_of,
    with_experts,
)
from headstart.models.families.fields import MAX_POSITIONS, Fields
from headstart.models.families.gguf import GGUF_LAYOUT
from headstart.models.families.granite import divided
from headstart.models.families.llama import HF_LAYOUT, base_of, biased, halves, windowed

_NORMS = NormsConfig("layer", bias=False, shared=True)


def _base(
    fields: Fields,
    theta: float,
    qk_norm: HeadNorms | None = None,
    *,
    head_dim: int | None = None,
    norms: NormsConfig = _NORMS,
) -> ModelConfig:
    return base_of(
        fields,
        tied=True,
        default_theta=theta,
        default_head_dim=head_dim,
        eps="layer_norm_eps" if norms.kind == "layer" else "rms_norm_eps",
        default_eps=1e-5,
        norms=norms,
        residual=ResidualConfig(parallel=True),
        folded=FoldedConfig(logit_divisor=1 / fields.number("logit_scale", 0.0625)),
        attention=replace(biased(fields), qk_norm=qk_norm),
    )


def _cohere(fields: Fields) -> ModelConfig:
    normed = fields.flag("use_qk_norm", False)
    return _base(fields, 500_000.0, HeadNorms("layer", own=True) if normed else None)


def _cohere2(fields: Fields) -> ModelConfig:
    config = _base(fields, 10_000.0)
    every = fields.integer("sliding_window_pattern", 4)
    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS) if fields.has("sliding_window") else 4096
    # Layers that see everything have no positions.
    return windowed(fields, config, window, lambda index: (index + 1) % every != 0, full=None)


def _cohere2_moe(fields: Fields) -> ModelConfig:
    norms = _NORMS if fields.get("rms_norm_eps") is None else NormsConfig(shared=True)
    # Where layers without experts have a size of their own, it is that of an MLP.
    size = fields.integer("intermediate_size")
    sized = fields.with_entries(intermediate_size=fields.integer("prefix_dense_intermediate_size", size))
    config = _base(sized, 10_000.0, head_dim=128, norms=norms)
    dense, first, rest = (
        first_dense(fields, config, 0),
        fields.integer("prefix_dense_sliding_window_pattern", 1),
        fields.integer("sliding_window_pattern", 4),
    )

    def slides(index: int) -> bool:
        return (index + 1) % first != 0 if index < len(dense) else (index - len(dense) + 1) % rest != 0

    window = fields.optional_integer("sliding_window", maximum=MAX_POSITIONS) if fields.has("sliding_window") else 4096
    config = windowed(fields, config, window, slides, full=None)
    turned = dense if first == 1 else set()
    layers = (replace(layer, rope=0) if index in turned else layer for index, layer in enumerate(config.layers))
    return with_experts(replace(config, layers=tuple(layers)), _averaged(fields, size), dense)


def _averaged(fields: Fields, size: int) -> ExpertsConfig:
    """Experts; what they and the shared one give is added up or, mostly, averaged."""
    count = count_of(fields, "num_experts", "num_local_experts", default=8)
    score = fields.text("expert_selection_fn", "softmax")
    if score not in ("softmax", "sigmoid"):
        raise fields.unsupported("expert_selection_fn", score, "softmax or sigmoid")
    combined = fields.text("shared_expert_combination_strategy", "average")
    if combined not in ("average", "sum"):
        raise fields.unsupported("shared_expert_combination_strategy", combined, "average or sum")
    # GGUF files have a size of its own.
    size = fields.integer("expert_feed_forward_length", size)
    shared_size = size * fields.integer("num_shared_experts", 0, minimum=0)
    halved = shared_size > 0 and combined == "average"
    return ExpertsConfig(
        count,
        used_of(fields, count, 2),
        size,
        score="softmax" if score == "softmax" else "sigmoid",
        normalised=score == "softmax" or fields.flag("norm_topk_prob", True),
        scale=0.5 if halved else 1.0,
        shared_size=shared_size,
        shared_gate=halved,
    )


_SOFTMAX, _SIGMOID = 1, 2
"""``expert_gating_func``."""


def _moe_entries(fields: Fields) -> dict[str, Any]:
    gating = fields.integer("expert_gating_func", _SIGMOID)
    if gating not in (_SOFTMAX, _SIGMOID):
        raise fields.unsupported("expert_gating_func", gating, f"{_SOFTMAX} or {_SIGMOID}, softmax or sigmoid")
    fields.require("expert_weights_scale", 1.0, default=1.0)
    return {"expert_selection_fn": "softmax" if gating == _SOFTMAX else "sigmoid"}


def _norms_in_halves(weight: Tensor, config: ModelConfig) -> Tensor:
    """[head, head_dim]"""
    return halves(weight.flatten(), config).view(weight.shape)


_CONVERT = {"q": halves, "k": halves, "q_norm": _norms_in_halves, "k_norm": _norms_in_halves, "final_norm": divided}
_LAYOUT = replace(HF_LAYOUT, convert=_CONVERT)
_GGUF_LAYOUT = replace(GGUF_LAYOUT, convert=_CONVERT)
_MOE_LAYOUT = layout_with(BY_EXPERT | shared("shared_experts"), _LAYOUT, beyond=True)
# No tensor says that a half of the shared expert counts.
_GGUF_MOE_LAYOUT = replace(_GGUF_LAYOUT, layer=without(_GGUF_LAYOUT.layer, "shared_scale"), beyond=True)

FAMILIES = (
    Family("cohere", _cohere, _LAYOUT, Gguf("command-r", _GGUF_LAYOUT, defaults={"logit_scale": 1.0})),
    Family("cohere2", _cohere2, _LAYOUT, Gguf("cohere2", _GGUF_LAYOUT, defaults={"logit_scale": 1.0})),
    Family(
        "cohere2_moe",
        _cohere2_moe,
        _MOE_LAYOUT,
        Gguf(
            "cohere2moe",
            _GGUF_MOE_LAYOUT,
            defaults={"logit_scale": 1.0, "norm_topk_prob": False},
            computed=_moe_entries,
        ),
        "experts",
    ),
)
