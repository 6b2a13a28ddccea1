"""Models that see, read as the decoder inside them: the encoder of images is left out.

Sources: the configuration and modelling files of transformers (models/llava, llava_next, llava_onevision, mistral3,
aya_vision, internvl, qwen2_vl, qwen2_5_vl, qwen3_vl, qwen3_vl_moe, exaone4_5). Qwen's rotations have three positions
for an image's patches; a text's are all the same one. (Gemma 3's form that sees is in ``gemma``.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headstart.models.config import ModelConfig
from headstart.models.families import cohere, kin, llama, mixtures
from headstart.models.families.base import WHOLE, Family, Gguf, TensorLayout, named
from headstart.models.families.experts import STACKED
from headstart.models.families.fields import Fields

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
    | {"vocab_size": 32000, "max_position_embeddings": 2048},
    "mistral": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131_072},
}
"""transformers' own: released files leave out what equals them."""
_INNER = {
    family.model_type: family
    for family in (*llama.FAMILIES, *kin.FAMILIES, *cohere.FAMILIES)
    if family.model_type in ("llama", "mistral", "ministral3", "qwen2", "qwen3", "cohere2", "exaone4")
}
"""The decoders that are found inside, by their ``model_type``."""


def _as(inner: Family, architecture: str) -> Gguf:
    """GGUF files have the encoder apart; what is left is the decoder inside."""
    assert inner.gguf is not None
    return replace(inner.gguf, architecture=architecture, read=lambda fields: named(inner.read(fields), inner.name))


@dataclass(frozen=True)
class _Wrapper:
    model_type: str
    inner: tuple[str, ...]
    """Decoders that are found inside."""
    default: str
    """The one where the description does not say."""
    prefix: str
    head: str
    left_out: tuple[str, ...]
    """Patterns of whole names."""
    other: tuple[str, str] | None = None
    """Prefix and head as files written at another time have them."""
    architecture: str = ""

    def families(self) -> tuple[Family, ...]:
        first = Family(
            self.model_type,
            partial(_read, self),
            self._layout(_INNER[self.default]),
            _as(_INNER[self.default], self.architecture) if self.architecture else None,
        )
        others = (
            Family(self.name(kind), first.read, self._layout(_INNER[kind]), described_as="")
            for kind in self.inner
            if kind != self.default
        )
        return first, *others

    def name(self, kind: str) -> str:
        return self.model_type if kind == self.default else f"{self.model_type}-{kind}"

    def _layout(self, inner: Family) -> TensorLayout:
        layout = replace(
            inner.hf_layout, prefix=self.prefix, head=self.head, ignored=(*inner.hf_layout.ignored, *self.left_out)
        )
        if self.other is None:
            return layout
        prefix, head = self.other
        return replace(layout, other=replace(layout, prefix=prefix, head=head))


def _read(wrapper: _Wrapper, fields: Fields) -> ModelConfig:
    # Qwen2-VL was released with everything in one.
    alone = fields.within("text_config") is None
    text = fields.with_entries(model_type=wrapper.default) if alone else fields.text_config()
    kind = text.text("model_type", wrapper.default).removesuffix("_text")
    kind = wrapper.default if kind == wrapper.model_type else kind
    if kind not in wrapper.inner:
        raise text.unsupported("model_type", kind, f"one of {', '.join(wrapper.inner)}")
    config = _INNER[kind].read(text.with_defaults(_DEFAULTS.get(kind, {})))
    return replace(config, family=wrapper.name(kind))


_TOWERS = (r"(model\.)?vision_tower\..*", r"(model\.)?multi_modal_projector\..*", r"(model\.)?image_newline")
_LLAVA: dict[str, Any] = {
    "prefix": "language_model.model.",
    "head": "language_model.lm_head",
    "left_out": _TOWERS,
    "other": ("model.language_model.", "lm_head"),
}
_VISUAL = (r"(model\.)?visual\..*",)
_TEXT, _WITHIN = "model.", "model.language_model."
_QWEN: dict[str, Any] = {"head": "lm_head", "left_out": _VISUAL}
_QWEN2: dict[str, Any] = {**_QWEN, "prefix": _TEXT, "other": (_WITHIN, "lm_head")}


def _qwen3_vl_moe(fields: Fields) -> ModelConfig:
    text = fields.within("text_config")
    if text is None:
        raise fields.missing("text_config")
    tied = fields.flag("tie_word_embeddings", text.flag("tie_word_embeddings", False))
    known = text.with_entries(norm_topk_prob=True, tie_word_embeddings=tied).with_defaults({"rope_theta": 500_000.0})
    return _QWEN3_MOE.read(known)


_QWEN3_MOE = next(family for family in mixtures.FAMILIES if family.name == "qwen3_moe")
_QWEN3_VL_MOE = Family(
    "qwen3_vl_moe",
    _qwen3_vl_moe,
    replace(
        _QWEN3_MOE.hf_layout,
        prefix="model.language_model.",
        layer={
            **{role: name for role, name in _QWEN3_MOE.hf_layout.layer.items() if not role.startswith("expert_")},
            **STACKED,
        },
        whole=WHOLE | STACKED.keys(),
        stacks="as found",
        ignored=(*_QWEN3_MOE.hf_layout.ignored, *_VISUAL),
    ),
    _as(_QWEN3_MOE, "qwen3vlmoe"),
    "experts",
)

_WRAPPED = tuple(
    family
    for wrapper in (
        _Wrapper("llava", ("llama", "mistral", "qwen2"), "llama", **_LLAVA),
        _Wrapper("llava_next", ("llama", "mistral", "qwen2"), "llama", **_LLAVA),
        _Wrapper("llava_onevision", ("qwen2",), "qwen2", **_LLAVA),
        _Wrapper("mistral3", ("mistral", "ministral3"), "mistral", **_LLAVA),
        _Wrapper("aya_vision", ("cohere2",), "cohere2", **_LLAVA),
        _Wrapper("internvl", ("qwen2", "qwen3", "llama"), "qwen2", **_LLAVA),
        _Wrapper("qwen2_vl", ("qwen2",), "qwen2", **_QWEN2, architecture="qwen2vl"),
        _Wrapper("qwen2_5_vl", ("qwen2",), "qwen2", **_QWEN2),
        _Wrapper("qwen3_vl", ("qwen3",), "qwen3", **_QWEN, prefix=_WITHIN, architecture="qwen3vl"),
        _Wrapper("exaone4_5", ("exaone4",), "exaone4", **_QWEN, prefix=_WITHIN, other=(_TEXT, "lm_head")),
    )
    for family in wrapper.families()
)

FAMILIES = (*_WRAPPED, _QWEN3_VL_MOE)
