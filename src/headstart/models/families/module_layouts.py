"""Where checkpoints have their multi-token modules: layers that came with the model and guess further tokens.

Sources: DeepSeek-V3's report (arXiv:2412.19437, section 2.2) and the names in its files; transformers' conversion table
("MtpModel"), vLLM 0.33's loaders (deepseek_mtp, glm4_moe_mtp, mimo_mtp, qwen3_next_mtp, exaone_moe_mtp, exaone4_5_mtp,
nemotron_h_mtp, mimo_v2_flash_mtp, step3p5_mtp, longcat_flash_mtp; hy_v4 of a plug-in), FastDeploy's ernie4_5_mtp,
llama.cpp's converter (conversion/*.py) and what it loads (src/models, "NEXTN").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headstart.errors import CheckpointError
from headstart.models.config import LayerConfig, ModelConfig
from headstart.models.families.base import CheckpointKind, LayerNumber
from headstart.models.families.deepseek import LATENT_LAYER
from headstart.models.families.kimi import hyper_roles

MOST_MODULES = 16
_PREFIX = "model."


@dataclass(frozen=True)
class MultiTokenLayout:
    """Names of a family's modules, without their ending. ``{i}`` is the number of a module's layer; a name without it
    is of what all modules share."""

    layer: str
    """What ``layers.{i}`` is in the names of a module's decoder layer."""
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str
    follows: bool = False
    """Numbers go on from the decoder's layers; else they begin with 0."""
    hidden_first: bool = False
    """The projection reads the state before it, then the token; else the token, then the state."""
    windowed: bool = False
    """Its layers are like the decoder's first one with a window, where there is one, else like the first; else like the
    last that attends."""
    embedding: str = ""
    """Of a table of its own, which files mostly leave out; likewise ``head``."""
    head: str = ""
    channel: str = ""
    """What ``layers.{i}`` is in the names of a layer's channel part, where that has a number of its own."""
    own: Mapping[str, str] = field(default_factory=dict)
    """role -> name in a module's layer, where it is not that of other layers."""
    may_share_norm: bool = False
    """Where it has no last norm, that is the decoder's."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Name -> what files of other writers have in its place."""
    of_states: str = ""
    """The half of the projection that reads states, where each has a tensor of its own."""
    streams: bool = False
    """Modules read all residual streams, where the decoder has several, and have as many; else one."""
    feeds_unnormed: bool = False
    """Modules read states before the last norm, not after it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``LayerConfig`` that its layers have otherwise than the decoder's."""

    @property
    def most(self) -> int:
        """Modules at most."""
        return MOST_MODULES if "{i}" in self.layer else 1

    def number(self, module: int, config: ModelConfig) -> int:
        """Of a module's layer."""
        return LayerNumber(module + (config.num_layers if self.follows else 0))

    def spelt_in(self, names: Container[str], number: int) -> MultiTokenLayout:
        """This layout as a file has it whose first module's layer has the ``number``."""

        def found(name: str) -> str:
            other = self.spellings.get(name, name)
            return other if f"{other.format(i=number)}.weight" in names else name

        own = {role: found(name) for role, name in self.own.items()}
        return replace(self, final_norm=found(self.final_norm), head=found(self.head), own=own)

    def under(self, prefix: str) -> MultiTokenLayout:
        """This layout in a file whose names begin with ``prefix`` where others' begin with ``model.`` or nothing."""

        def moved(name: str) -> str:
            return f"{prefix}{name.removeprefix(_PREFIX)}" if name else name

        names: dict[str, Any] = {
            each.name: moved(getattr(self, each.name)) for each in fields(self) if each.type == "str"
        }
        spellings = {moved(ours): moved(theirs) for ours, theirs in self.spellings.items()}
        own = {role: moved(name) for role, name in self.own.items()}
        return replace(self, **names, own=own, spellings=spellings)

    def like(self, config: ModelConfig, module: int = 0) -> LayerConfig:
        """What a module's layer is like; it has both parts, also where the decoder's have one of them.

        Raises:
            CheckpointError: none of the decoder's is like it.
        """
        if module < len(config.module_layers):
            return config.module_layers[module]
        return replace(self._alike(config), **self.changes)

    def _alike(self, config: ModelConfig) -> LayerConfig:
        if not self.windowed:
            attending = _last(config, lambda layer: layer.mixer in ("attention", "latent", "compressed"))
            if attending.channel != "none":
                return attending
            changing = _last(config, lambda layer: layer.channel != "none")
            return replace(attending, channel=changing.channel, mlp_size=changing.mlp_size)
        return next((layer for layer in config.layers if layer.window is not None), config.layers[0])

    def place(self, config: ModelConfig) -> int | None:
        """The decoder's last layer of this kind; None: its layers have one part each."""
        like = self.like(config)
        return max((place for place, layer in enumerate(config.layers) if layer == like), default=None)


def _last(config: ModelConfig, fits: Callable[[LayerConfig], bool]) -> LayerConfig:
    """The decoder's last layer that ``fits``."""
    found = [layer for layer in config.layers if fits(layer)]
    if not found:
        raise CheckpointError(f"no layer of its {config.family} decoder is like those of multi-token modules.")
    return found[-1]


def _in_layer(layer: str, parts: tuple[str, str, str, str], **more: Any) -> MultiTokenLayout:
    """Modules that share nothing. ``parts``: embedding norm, hidden norm, projection, final norm."""
    embedding_norm, hidden_norm, projection, final_norm = (f"{layer}.{part}" for part in parts)
    return MultiTokenLayout(layer, embedding_norm, hidden_norm, projection, final_norm, **more)


def _behind(layer: str) -> MultiTokenLayout:
    """Numbered behind the decoder's layers, as DeepSeek-V3's."""
    parts = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    return _in_layer(layer, parts, follows=True, embedding=f"{layer}.embed_tokens", head=f"{layer}.shared_head.head")


_DEEPSEEK, _DEEPSEEK_INSIDE = map(_behind, ("model.layers.{i}", "model.language_model.layers.{i}"))
_STEP = _in_layer(
    "model.layers.{i}",
    ("enorm", "hnorm", "eh_proj", "transformer.shared_head.norm"),
    follows=True,
    windowed=True,
    feeds_unnormed=True,
    head="model.layers.{i}.transformer.shared_head.output",
    changes={"mlp_limit": None, "expert_limit": None},
    spellings={
        f"model.layers.{{i}}.transformer.shared_head.{ours}": f"model.layers.{{i}}.shared_head.{theirs}"
        for ours, theirs in (("norm", "norm"), ("output", "head"))
    },
)
_WITH_LAST_NORM = replace(_DEEPSEEK, final_norm="model.layers.{i}.final_layernorm")
"""As others call it."""
_SEEING_ALL: Mapping[str, Any] = {"rope": 0, "window": None, "channel": "experts"}
_COHERE = replace(_DEEPSEEK, may_share_norm=True, changes=_SEEING_ALL)
_ERNIE = MultiTokenLayout(
    "model.mtp_block.{i}",
    "model.mtp_emb_norm.{i}",
    "model.mtp_hidden_norm.{i}",
    "model.mtp_linear_proj.{i}",
    "model.mtp_final_norm.{i}",  # which no released file has
    may_share_norm=True,
    changes={"channel": "mlp"},
)
_GGUF = _in_layer(
    "blk.{i}",
    ("nextn.enorm", "nextn.hnorm", "nextn.eh_proj", "nextn.shared_head_norm"),
    follows=True,
    embedding="blk.{i}.nextn.embed_tokens",
    head="blk.{i}.nextn.shared_head_head",
    may_share_norm=True,
    spellings={"blk.{i}.nextn.shared_head_norm": "blk.{i}.layer_output_norm"},
)
_GGUF_WINDOWED = replace(_GGUF, windowed=True)
_GGUF_STEP = replace(_GGUF_WINDOWED, feeds_unnormed=True, changes=_STEP.changes)
_GGUF_COHERE = replace(_GGUF, changes=_SEEING_ALL)
_GGUF_NEMOTRON = replace(_GGUF, own={"mlp_norm": "blk.{i}.post_attention_norm"})
_NEMOTRON = MultiTokenLayout(
    "mtp.layers.0",
    "mtp.layers.0.enorm",
    "mtp.layers.0.hnorm",
    "mtp.layers.0.eh_proj",
    "mtp.layers.1.final_layernorm",
    channel="mtp.layers.1",
)
_MIMO = _in_layer(
    "model.mtp_layers.{i}", ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"), hidden_first=True
)
_MIMO_V2 = _in_layer(
    "model.mtp.layers.{i}",
    ("enorm", "hnorm", "eh_proj", "final_layernorm"),
    windowed=True,
    own={"mlp_norm": "model.mtp.layers.{i}.pre_mlp_layernorm"},
    spellings={"model.mtp.layers.{i}.pre_mlp_layernorm": "model.mtp.layers.{i}.post_attention_layernorm"},
    changes={"channel": "mlp"},
)
_HY_V4 = _in_layer("model.mtp_layers.{i}", ("enorm", "hnorm", "eh_proj", "final_layernorm"))
_BEHIND_WINDOW: Mapping[str, Any] = {"rope": 0, "compression": None, "by_token": False}
_OF_V4 = "mtp.{i}"
_DEEPSEEK_V4 = _in_layer(
    _OF_V4,
    ("enorm", "hnorm", "e_proj", "norm"),
    of_states=f"{_OF_V4}.h_proj",
    streams=True,
    embedding=f"{_OF_V4}.emb.tok_emb",
    head=f"{_OF_V4}.head",
    own=hyper_roles(f"{_OF_V4}.hc_", end="head"),
    changes=_BEHIND_WINDOW,
)
_GGUF_DEEPSEEK_V4 = replace(_GGUF, streams=True, changes=_BEHIND_WINDOW)
_OF_LONGCAT = "model.mtp.layers.{i}"
_LONGCAT = MultiTokenLayout(
    _OF_LONGCAT,
    f"{_OF_LONGCAT}.enorm.m",
    f"{_OF_LONGCAT}.hnorm.m",
    f"{_OF_LONGCAT}.eh_proj",
    "model.mtp.norm",
    embedding="model.mtp.embed_tokens",
    own={role: name.replace("layers.{i}", _OF_LONGCAT) for role, name in LATENT_LAYER.items()}
    | {part: f"{_OF_LONGCAT}.transformer_layer.mlp.{part}_proj" for part in ("gate", "up", "down")},
)
_QWEN = MultiTokenLayout("mtp.layers.{i}", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
_LIKE_QWEN = replace(_QWEN, windowed=True)
"""Others took the names over."""

_LAYOUTS: Mapping[CheckpointKind, Mapping[str, MultiTokenLayout]] = {
    "hf": {
        **dict.fromkeys(
            ("deepseek_v3", "deepseek_v3_halves", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite"), _DEEPSEEK
        ),
        **dict.fromkeys(("glm5_next", "glm5_next_text"), _DEEPSEEK_INSIDE),
        **dict.fromkeys(("bailing_moe", "bailing_hybrid", "hy_v3"), _WITH_LAST_NORM),
        "cohere2_moe": _COHERE,
        "deepseek_v4": _DEEPSEEK_V4,
        "ernie4_5_moe": _ERNIE,
        "hy_v4": _HY_V4,
        "longcat_flash": _LONGCAT,
        "mimo": _MIMO,
        **dict.fromkeys(("mimo_v2", "mimo_v2_flash"), _MIMO_V2),
        **dict.fromkeys(("step3p5", "step3p7"), _STEP),
        **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _NEMOTRON),
        **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), _QWEN),
        **dict.fromkeys(("exaone_moe", "exaone4_5", "mellum"), _LIKE_QWEN),
    },
    "gguf": {
        "cohere2_moe": _GGUF_COHERE,
        "deepseek_v4": _GGUF_DEEPSEEK_V4,
        **dict.fromkeys(("exaone_moe", "exaone4", "mellum", "mimo_v2_flash"), _GGUF_WINDOWED),
        "step3p5": _GGUF_STEP,
        **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _GGUF_NEMOTRON),
    },
}
_OTHERS: Mapping[CheckpointKind, tuple[MultiTokenLayout, ...]] = {"hf": (_QWEN, _DEEPSEEK, _MIMO), "gguf": (_GGUF,)}
"""Where a file may have them besides."""


def multi_token_layout(config: ModelConfig, kind: CheckpointKind) -> MultiTokenLayout:
    """Where the modules of this model's family are in one kind of file.

    Families that come without modules have them, where they were trained here, under Qwen's names.
    """
    return _LAYOUTS[kind].get(config.family, _QWEN if kind == "hf" else _GGUF)


def comes_with_modules(family: str) -> bool:
    """Whether models of a family are published with modules of their own."""
    return family in _LAYOUTS["hf"]


def layouts_of_modules(
    config: ModelConfig, kind: CheckpointKind, names: Collection[str]
) -> tuple[MultiTokenLayout, ...]:
    """Where a file that has these ``names`` may have modules of this model's family, its own place first."""
    return tuple(_found_in(names, each, config) for each in (multi_token_layout(config, kind), *_OTHERS[kind]))


def _found_in(names: Collection[str], layout: MultiTokenLayout, config: ModelConfig) -> MultiTokenLayout:
    """A layout behind whatever stands before the names of a file."""
    projection = f"{layout.projection.format(i=layout.number(0, config))}.weight"
    core = projection.removeprefix(_PREFIX)
    if projection in names:
        return layout
    prefix = next((name.removesuffix(core) for name in names if name == core or name.endswith(f".{core}")), None)
    return layout if prefix is None else layout.under(prefix)
