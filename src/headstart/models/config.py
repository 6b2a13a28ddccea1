"""What a decoder looks like: one frozen description for every family.

A family file (``models/families/``) turns a Hugging Face ``config.json`` or GGUF metadata into a ``ModelConfig``;
the decoders (torch and native) read nothing else. A feature a family lacks is off by default, so that a new
family costs one function and no new decoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from headstart.models.compressed_config import CompressedConfig, Compression
from headstart.models.encoder_decoder import EncoderConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.state_config import ConvolutionConfig, DeltaConfig, Mamba2Config, MambaConfig
from headstart.models.streams_config import HyperConfig, StreamsConfig

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu"]
"""relu2: the square of relu; xielu: with two learnt numbers a layer (Huang et al. 2024)."""
NormKind = Literal["rms", "layer"]
Gate = Literal["element", "head"]
"""Whether a gate has a number for each element of what heads see, or one for each head."""
PositionTable = Literal["learned", "sinusoid"]
"""sinusoid: computed: sines, then cosines, of positions counted from 2 (XGLM)."""
Mixer = Literal[
    "attention", "latent", "convolution", "mamba", "mamba2", "delta", "attention+mamba2", "none", "compressed"
]
"""Through what the rows of a layer see each other. "convolution" and those after it keep a state in place of keys and
values, or beside them where both kinds are added up (Falcon-H1); "none": they do not, and the layer is a channel part
alone (Nemotron-H); "compressed": a window, and keys made of several tokens each (DeepSeek-V4). The native pass counts
them in this order, as it does ``ExpertScore``."""
Channel = Literal["mlp", "experts", "mlp+experts", "none"]
"""What a layer does with every row by itself; "mlp+experts": both, each between norms of its own, added up (Gemma 4);
"none": nothing."""


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    ``theta`` is the base; ``dim`` the number of rotated dimensions of a head (the first ones, rotate-half
    layout); ``scaling`` the ``rope_scaling`` entry in Hugging Face form (``{"rope_type": "llama3", ...}``, "yarn" with
    all of its entries but ``mscale``, "longrope" without its factors, or ``{"rope_type": "linear", "factor": ...}``),
    None for plain; ``factors`` [dim / 2] divide the frequencies ("longrope"), empty: nothing does.
    """

    theta: float
    dim: int
    scaling: dict[str, float | int | str] | None = None
    factors: tuple[float, ...] = ()


Sight = tuple[int | None, int | None]
"""How far back the rows of a layer see: its window and its chunk."""
EVERYTHING: Sight = (None, None)


@dataclass(frozen=True)
class LayerConfig:
    """What may differ from layer to layer.

    ``window``: sliding-window size in tokens, the row's own included, None for full attention.
    ``rope``: index into ``ModelConfig.ropes``, None for a layer without positions (SmolLM3, GPT-2).
    """

    window: int | None = None
    rope: int | None = 0
    mixer: Mixer = "attention"
    channel: Channel = "mlp"
    chunk: int | None = None
    """Rows see those before them in their own chunk of so many tokens alone (Llama 4)."""
    reads: int | None = None
    """It keeps no keys and values, but reads those of this earlier layer (Gemma 3n)."""
    head_dim: int | None = None
    """None: as ``ModelConfig`` has it; so are the next three."""
    num_heads: int | None = None
    num_kv_heads: int | None = None
    mlp_size: int | None = None
    values_are_keys: bool = False
    """Values are what keys are before their norm and rotation (Gemma 4)."""
    sparsity: float = 0.0
    """Of a gated MLP: the share of a normal distribution's gates that are cut off; 0: none are (Gemma 3n)."""
    mlp_limit: float | None = None
    """Of the MLP that all rows go through: what activated gates are cut off at, and ups on both sides (Step 3.5)."""
    expert_limit: float | None = None
    """The same of experts."""
    limits_raw: bool = False
    """Gates are cut off before they are activated (GLM-5.3)."""
    delays: bool = False
    """What its experts give is added behind the next layer (LongCat-Flash); but for what all rows go through."""
    sinks: bool = True
    """It has sinks, where the model's attention has (``AttentionConfig``)."""
    by_token: bool = False
    """A table says which experts each token goes through (DeepSeek-V4)."""
    compression: Compression | None = None
    """Of layers whose mixer is "compressed"; None: they see their window alone."""
    input: int | None = None
    """Which of the ``LayerInputsConfig.count`` it reads."""
    shares_choice: bool = False
    """It has no indexer (``LatentConfig``): rows see what the last one before it has chosen."""

    def cuts(self, limit: float | None) -> tuple[float, float] | None:
        """What activated gates, and ups, are cut off at where the ``limit`` is one of the above. Of silu, which grows
        wherever it is above its value for any smaller gate."""
        if limit is None:
            return None
        return limit / (1 + math.exp(-limit)) if self.limits_raw else limit, limit

    @property
    def sight(self) -> Sight:
        return self.window, self.chunk

    @property
    def attends(self) -> bool:
        """Whether its rows see keys and values."""
        return self.mixer in ("attention", "latent", "compressed", "attention+mamba2")

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps a state instead, or as well."""
        return self.mixer not in ("attention", "latent", "compressed", "none")


@dataclass(frozen=True)
class HeadNorms:
    """Norms of queries and keys; with ``NormsConfig``'s epsilon and offset."""

    kind: NormKind = "rms"
    reach: Literal["head", "all"] = "head"
    """Over each head by itself, or over all heads together (OLMo 2)."""
    own: bool = False
    """Each head has weights of its own (Cohere)."""
    bias: bool = False
    learnt: bool = True
    """False: no weights at all."""
    rotated: bool = False
    """After the rotation, not before it (Hunyuan)."""
    everywhere: bool = True
    """False: in layers with a rotation alone (Llama 4)."""


@dataclass(frozen=True)
class LayerInputsConfig:
    """What layers read of a row beside its stream: made of its token's embedding, and looked up by its token in a
    table of their own (Gemma 3n: transformers' models/gemma3n)."""

    count: int
    """Layers that there is something for."""
    size: int
    """Of what one reads."""
    vocab_size: int
    """Rows of the table; tokens beyond it read the first one."""


@dataclass(frozen=True)
class Alibi:
    """Scores fall with the distance of the key (Press et al. 2022)."""

    slopes: tuple[float, ...]
    """[head] what is taken off a score for every token of distance."""
    scale: float = 1.0
    """Of what is taken off."""
    coarse: bool = False
    """Slopes and their products with positions are rounded to bf16, as Falcon's are."""


@dataclass(frozen=True)
class QueryGrowth:
    """Queries grow with their position beyond ``trained`` tokens: times
    1 + ``weight`` * log(1 + floor(position / trained)) (Ministral 3; Llama 4's temperature)."""

    weight: float
    trained: int
    everywhere: bool = True
    """False: in layers without a rotation alone, and positions count from 1 (Llama 4)."""


@dataclass(frozen=True)
class IndexerConfig:
    """What chooses the tokens that a row sees by small keys of their own (DeepSeek-V3.2, section 2.1); the model's rope
    turns the first dimensions of these."""

    heads: int
    dim: int
    chosen: int
    """Keys that a row sees the tokens of."""
    pool: int = 1
    """Tokens that have one key, a mixture of their own; rows see all tokens behind the last such key (GLM-5.3)."""
    norm_eps: float = 1e-6
    """Of the keys' layer norm."""
    turns_last: bool = False
    """The rope turns the last dimensions (HY-V4)."""

    @property
    def weights(self) -> int:
        """Numbers that a token gives to mixtures beside its key."""
        return self.dim if self.pool > 1 else 0

    @property
    def kept(self) -> int:
        """What a token keeps: its key, or what it gives to mixtures and, where it is the last of one, that."""
        return self.dim + 2 * self.weights


@dataclass(frozen=True)
class LatentConfig:
    """Latent attention: keys and values of all heads are made from one small state of a row (DeepSeek-V2, section 2.1).

    ``ModelConfig.head_dim`` is ``plain_dim + rope_dim``; the rope turns the last ``rope_dim`` of a query and the key
    that all heads share.
    """

    kv_rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    q_rank: int | None = None
    """Queries come from a small state, too; None: from the row itself."""
    norm_eps: float = 1e-6
    """Of the norms of the small states."""
    bias: bool = False
    """Of the projections to the small states."""
    indexer: IndexerConfig | None = None
    """None: rows see all tokens."""

    @property
    def pooled(self) -> bool:
        """Whether several tokens have one key of an indexer."""
        return self.indexer is not None and self.indexer.pool > 1

    def indexer_of(self, layer: LayerConfig) -> IndexerConfig | None:
        """A layer's own."""
        return None if layer.shares_choice else self.indexer


@dataclass(frozen=True)
class NormsConfig:
    """Norms of the residual stream, and what all norms share."""

    kind: NormKind = "rms"
    eps: float = 1e-5
    offset: float = 0.0
    """Added to every norm weight (Gemma stores w - 1)."""
    bias: bool = True
    """Layer norms have a bias."""
    learnt: bool = True
    """False: norms have no weights (OLMo)."""
    pre: bool = True
    """False: layers read the stream as it is (OLMo 2)."""
    post: bool = False
    """Norms on the attention's and the MLP's output too (Gemma 2 and 3)."""
    shared: bool = False
    """The MLP's norm is the attention's, where both parts read the same stream (GPT-J, Cohere)."""


@dataclass(frozen=True)
class AttentionConfig:
    """What layers that attend have beside their sizes."""

    scale: float | None = None
    """Factor on q.k; None means 1/sqrt(head_dim). See ``ModelConfig.score_scale``."""
    softcap: float | None = None
    """Of scores."""
    qkv_bias: bool = False
    output_bias: bool = False
    qkv_clip: float | None = None
    """What queries, keys and values are cut off at, before they are rotated."""
    qk_norm: HeadNorms | None = None
    value_norm: bool = False
    """RMS norms of values, head by head, without weights (Gemma 3n)."""
    value_dim: int | None = None
    """Size of a head's values; None: as of its keys (MiMo-V2)."""
    value_scale: float = 1.0
    """Of what heads see."""
    gate: Gate | None = None
    """What heads see is multiplied by a sigmoid of the layer's input (AFMoE; one number for each head: LFM3)."""
    sinks: bool = False
    """Every head has a score that no key has, as of a key with value 0 (gpt-oss)."""
    alibi: Alibi | None = None
    query_growth: QueryGrowth | None = None


@dataclass(frozen=True)
class MlpConfig:
    """What MLPs have beside their size; experts have its activation, too."""

    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True)
class EmbeddingConfig:
    """What a row is made of before the first layer."""

    scale: float = 1.0
    norm: bool = False
    """A norm of the embedding (BLOOM)."""
    positions: PositionTable | None = None
    """Of a table of position embeddings added to the input (GPT-2)."""


@dataclass(frozen=True)
class OutputHeadConfig:
    """The matrix that makes logits of the last state."""

    tied: bool = True
    """It is the embedding."""
    bias: bool = False
    softcap: float | None = None
    """Of logits."""


@dataclass(frozen=True)
class ResidualConfig:
    """How layers read and change the residual stream."""

    parallel: bool = False
    """x + attention(norm1(x)) + mlp(norm2(x)) (GPT-NeoX)."""
    side_rank: int | None = None
    """A second path beside the mixer, of two matrices with so many numbers between them; the stream is divided by
    sqrt(2) after both (LAuReL: Menghani et al. 2024, section 2)."""
    layer_scales: bool = False
    """Each layer's output is multiplied by a learnt number (Gemma 4)."""
    streams: StreamsConfig | None = None
    """None: there is one."""
    hyper: HyperConfig | None = None
    """None: parts of layers read the stream as it is. Else taps show the mean of all streams."""
    tap_scale: float = 1.0
    """Taps of layers show the residual stream times this."""


@dataclass(frozen=True)
class FoldedConfig:
    """Factors that are put into weights when a checkpoint is read, so that no decoder sees them."""

    logit_divisor: float = 1.0
    """Into the final norm's weight (Granite)."""
    post_norms: float = 1.0
    """Into the weights of norms of outputs (HyperCLOVA X)."""
    rows: tuple[tuple[str, tuple[tuple[int, float], ...]], ...] = ()
    """Role of a matrix -> factors of so many of its rows each (Falcon-H1)."""


@dataclass(frozen=True)
class ModelConfig:
    """A transformer's decoder, and its encoder where it has one. Sizes are in elements, lengths in tokens.

    Beside the sizes there is a record for each mechanism: those that every decoder has with their defaults, the others
    None where the family lacks them.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    max_positions: int
    layers: tuple[LayerConfig, ...]
    module_layers: tuple[LayerConfig, ...] = ()
    """What those of its multi-token modules are like, where the description says so."""
    ropes: tuple[RopeConfig, ...] = ()
    norms: NormsConfig = NormsConfig()
    attention: AttentionConfig = AttentionConfig()
    mlp: MlpConfig = MlpConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    head: OutputHeadConfig = OutputHeadConfig()
    residual: ResidualConfig = ResidualConfig()
    folded: FoldedConfig = FoldedConfig()
    layer_inputs: LayerInputsConfig | None = None
    latent: LatentConfig | None = None
    """Of layers whose mixer is "latent"."""
    compressed: CompressedConfig | None = None
    """Of layers whose mixer is "compressed"."""
    convolution: ConvolutionConfig | None = None
    """Of layers whose mixer is "convolution"; the next three likewise."""
    mamba: MambaConfig | None = None
    mamba2: Mamba2Config | None = None
    delta: DeltaConfig | None = None
    experts: ExpertsConfig | None = None
    """Of layers whose channel part is "experts"."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    encoder: EncoderConfig | None = None
    """None: it is a decoder alone."""
    name: str = field(default="", compare=False)
    """Where it came from, for messages."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether any of its layers has."""
        return any(layer.channel in ("experts", "mlp+experts") for layer in self.layers)

    @property
    def keeps_states(self) -> bool:
        """Whether any layer keeps a state beside keys and values."""
        return any(layer.keeps_state for layer in self.layers)

    def heads_of(self, layer: LayerConfig) -> int:
        """Query heads of a layer."""
        return self.num_heads if layer.num_heads is None else layer.num_heads

    def kv_heads_of(self, layer: LayerConfig) -> int:
        """Key-value heads of a layer."""
        return self.num_kv_heads if layer.num_kv_heads is None else layer.num_kv_heads

    def head_dim_of(self, layer: LayerConfig) -> int:
        """Size of a layer's heads."""
        return self.head_dim if layer.head_dim is None else layer.head_dim

    def value_dim_of(self, layer: LayerConfig) -> int:
        """Size of what a layer's heads see."""
        return self.head_dim_of(layer) if self.attention.value_dim is None else self.attention.value_dim

    @property
    def score_scale(self) -> float:
        """Factor on q.k."""
        return self.head_dim**-0.5 if self.attention.scale is None else self.attention.scale
