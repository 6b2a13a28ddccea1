"""What a family is: how its description is read, and where its tensors are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict

from torch import Tensor

from headstart.models.compressed_config import CompressedConfig
from headstart.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FoldedConfig,
    LatentConfig,
    LayerConfig,
    LayerInputsConfig,
    MlpConfig,
    ModelConfig,
    NormsConfig,
    OutputHeadConfig,
    ResidualConfig,
    RopeConfig,
)
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.fields import Fields
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config, MambaConfig

CheckpointKind = Literal["hf", "gguf"]
FamilyKind = Literal["dense", "experts"]
"""Whether every row goes through all weights."""
Stacks = Literal["plain", "transposed", "below", "as found"]
"""[expert, out, in]; [expert, in, out]; one below the other in one matrix, those that lower transposed (DBRX); one of
the first two, as shapes tell: transformers saves some the other way round than they were released."""
Convert = Callable[[Tensor, ModelConfig], Tensor]
"""From a file's layout of a tensor (weight or bias) to the canonical one of ``models.weights``."""


class Parts(TypedDict, total=False):
    """Records of ``ModelConfig`` that a family has beside what its kin share."""

    layers: tuple[LayerConfig, ...]
    ropes: tuple[RopeConfig, ...]
    norms: NormsConfig
    attention: AttentionConfig
    mlp: MlpConfig
    embedding: EmbeddingConfig
    head: OutputHeadConfig
    residual: ResidualConfig
    folded: FoldedConfig
    layer_inputs: LayerInputsConfig | None
    latent: LatentConfig | None
    compressed: CompressedConfig | None
    convolution: ConvolutionConfig | None
    mamba: MambaConfig | None
    mamba2: Mamba2Config | None
    delta: DeltaConfig | None
    experts: ExpertsConfig | None


CURVE = {"above": "alpha_p", "below": "alpha_n", "slope": "beta", "least": "eps"}
"""What xielu's numbers are called in both kinds of file."""
WHOLE = frozenset(
    {"router_correction", "step_bias", "log_decay", "skip"}
    | {f"expert_{part}_bias" for part in ("gate", "up", "down")}
    | {f"curve_{role}" for role in CURVE}
)
"""Roles whose names have no ending in any file."""


class LayerNumber(int):
    """Of a layer, for names of files that number pairs of layers, and the halves of each (LongCat-Flash)."""

    pair = property(lambda self: self // 2)
    half = property(lambda self: self % 2)


@dataclass(frozen=True)
class TensorLayout:
    """Names of a family's tensors in one kind of file, without their ending ``.weight`` or ``.bias``.

    ``layer``: role -> name, with ``{i}`` for the layer. Roles are the fields of ``LayerWeights`` and of its parts,
    except that ``qkv`` may be split in ``q``, ``k``, ``v``, and a gated MLP's ``up`` in ``gate`` and ``up``. Latent
    attention has ``q_down`` (or ``q``), ``kv_down``, ``q_up``, ``kv_up``; experts ``router``, ``router_correction``,
    ``router_norm``, ``expert_scales``, ``expert_gate``, ``expert_up``, ``expert_down``, of which the last three have
    ``{e}`` for the expert in their names or name tensors in which all experts' are stacked, and ``shared_gate``,
    ``shared_up``, ``shared_down``, ``shared_scale``; short convolutions ``convolution_input``, ``convolution_kernel``,
    ``convolution_output``. Recurrent mixers have ``convolution_kernel``, ``step_bias``, ``log_decay``, ``state_norm``,
    and Mamba-2 ``skip``, ``mamba_input``, ``mamba_output``; Mamba 1 besides ``mamba_selection``, ``mamba_step``,
    ``step_norm``, ``where_to_norm``, ``from_where_norm``; the delta rule ``delta_qkv``, ``delta_gate``,
    ``delta_share``, ``delta_step`` (or the first two and the last two in one, ``delta_qkv_gate``, ``delta_share_step``)
    and ``delta_output``. A second path has ``side_down``, ``side_up``, ``side_norm``; streams ``stream_router``,
    ``stream_norm``, ``stream_predict``, ``stream_correct``, ``stream_scale``; inputs of layers ``input_gate``,
    ``input_output``, ``input_norm``; experts beside an MLP ``dense_post_norm``, ``experts_norm``,
    ``experts_post_norm``; and a layer's output ``layer_scale``.
    """

    embedding: str
    final_norm: str
    head: str
    layer: Mapping[str, str]
    prefix: str = ""
    """Before every name but the head's; files of the bare model leave it out."""
    embedding_norm: str = ""
    inputs_table: str = ""
    """Of what layers read beside their stream; likewise ``inputs_projection`` and ``inputs_norm``."""
    inputs_projection: str = ""
    inputs_norm: str = ""
    stream_spread: str = ""
    """Of a matrix for each stream but the first, ``{i}``, or of a tensor in which they are stacked; ``stream_merge``
    likewise."""
    stream_merge: str = ""
    positions: str = ""
    first_position: int = 0
    """Row of the table that position 0 reads (OPT)."""
    rope_factors: str = ""
    """Whole name of a table that divides the rotary frequencies, where the format has one."""
    factored_rope: int | None = None
    """Of ``ModelConfig.ropes`` the one that it divides, and without which that is unknown; None: all of them."""
    spare_factors: bool = False
    """Files may lack that table, and may have more rows than there are frequencies: the first are read."""
    transposed: bool = False
    """Matrices inside the layers are [in, out] (GPT-2's Conv1D)."""
    stacks: Stacks = "plain"
    """How experts that are stacked in one tensor are."""
    whole: frozenset[str] = WHOLE
    """Roles whose names are whole, without an ending."""
    beyond: bool = False
    """Files may hold layers beyond the decoder's, which guess further tokens."""
    as_rows: frozenset[str] = frozenset()
    """Roles whose vectors are stored as matrices of one row."""
    flat: frozenset[str] = frozenset()
    """Roles whose matrices of one row are stored as vectors, and kernels of convolutions as matrices."""
    folded: Mapping[str, Callable[[ModelConfig], tuple[int, ...]]] = field(default_factory=dict)
    """role -> shape in which a vector is stored."""
    scalars: frozenset[str] = frozenset()
    """Roles whose tensors have no axis."""
    excerpts: Mapping[str, int] = field(default_factory=dict)
    """role -> how many times as many rows its tensor has; the role's conversion picks its own."""
    without_bias: frozenset[str] = frozenset()
    """Roles that have no bias where their layer's other parts have one."""
    convert: Mapping[str, Convert] = field(default_factory=dict)
    """role -> conversion, where the file's layout differs from the canonical one."""
    other: TensorLayout | None = None
    """How files written at another time have it."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """role -> its name in a layer where files of other writers have that."""
    ignored: tuple[str, ...] = ()
    """Patterns (whole name, prefix left out) of tensors that carry nothing: buffers saved by older versions, and scales
    of a quantised cache, which is no part of the model."""

    def found_in(self, shapes: Mapping[str, tuple[int, ...]]) -> TensorLayout:
        """This layout, or the other one if that is the file's."""
        other = self.other
        found = other if other is not None and f"{other.prefix}{other.embedding}.weight" in shapes else self
        spelt = {role: name for role, name in found.spellings.items() if found._is_in(shapes, name)}
        found = replace(found, layer={**found.layer, **spelt}) if spelt else found
        return replace(found, stacks=found._stacks_of(shapes)) if found.stacks == "as found" else found

    def _is_in(self, shapes: Mapping[str, tuple[int, ...]], name: str) -> bool:
        """Whether any layer has it."""
        pattern = re.compile(re.escape(self.prefix + name).replace(r"\{i\}", r"\d+") + r"(\.weight)?")
        return any(pattern.fullmatch(each) for each in shapes)

    def _stacks_of(self, shapes: Mapping[str, tuple[int, ...]]) -> Stacks:
        """By a stack's last matrices [hidden, size]."""
        table = shapes.get(f"{self.prefix}{self.embedding}.weight", ())
        pattern = re.compile(re.escape(self.prefix + self.layer["expert_down"]).replace(r"\{i\}", r"\d+"))
        stack = next((shape for name, shape in shapes.items() if pattern.fullmatch(name)), ())
        plain = len(stack) == 3 and len(table) == 2 and stack[1] == table[1] != stack[2]
        return "plain" if plain else "transposed"


def without(layer: Mapping[str, str], *roles: str) -> dict[str, str]:
    """The names of the other roles."""
    return {role: name for role, name in layer.items() if role not in roles}


ROTARY_BUFFERS = r"(.*\.)?rotary_emb\.(original_inv_freq|inv_freq|cos_cached|sin_cached)"
CACHE_SCALES = (
    r"layers\.\d+\.(self_attn|attention)\.(attn\.)?([qkv]_proj\.)?(q|k|v|kv|prob)_(scale|zero_point)",
    r"layers\.\d+\.(self_attn|attention)\.[kv]_proj\.output_(scale|zero_point)",
)
"""As vLLM's checkpoints of 8-bit caches name them; transformers passes over them, too."""


def _nothing(_: Fields) -> Mapping[str, Any]:
    return {}


def named(config: ModelConfig, family: str) -> ModelConfig:
    """The model, of this family unless its reader named another one."""
    return config if config.family else replace(config, family=family)


@dataclass(frozen=True)
class Gguf:
    """How GGUF files have a family: their metadata are read as its ``config.json`` (``families.gguf``)."""

    architecture: str
    """``general.architecture``; "": a variant that another family's description leads to."""
    layout: TensorLayout
    names: Mapping[str, str] = field(default_factory=dict)
    """Entry of a ``config.json`` -> metadata, beside those that all families share."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Entries that metadata leave out, where a ``config.json`` means something else by its silence."""
    computed: Callable[[Fields], Mapping[str, Any]] = _nothing
    """Entries that are made of several."""
    read: Callable[[Fields], ModelConfig] | None = None
    """Where several families share the architecture; None: as the family reads its ``config.json``."""


@dataclass(frozen=True)
class Family:
    """A kind of decoder."""

    name: str
    read: Callable[[Fields], ModelConfig]
    """Reads a description; names a family only where that may be another one."""
    hf_layout: TensorLayout
    gguf: Gguf | None = None
    kind: FamilyKind = "dense"
    described_as: str | None = None
    """``model_type`` in config.json, where it is not the name; "": a variant that another family's description leads
    to."""

    @property
    def model_type(self) -> str:
        return self.name if self.described_as is None else self.described_as

    def layout(self, kind: CheckpointKind) -> TensorLayout:
        if kind == "hf":
            return self.hf_layout
        assert self.gguf is not None
        return self.gguf.layout
