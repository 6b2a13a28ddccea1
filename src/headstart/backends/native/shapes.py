"""What a model looks like, for the library."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, get_args

from headstart.backends.native.library import (
    Compressed,
    Convolution,
    Delta,
    Experts,
    Hyper,
    Indexer,
    Inputs,
    Latent,
    Layer,
    Mamba,
    Mamba2,
    Shape,
)
from headstart.backends.native.precision import Precision, library_number
from headstart.models.config import (
    Activation,
    Channel,
    Gate,
    HeadNorms,
    LayerConfig,
    Mixer,
    ModelConfig,
    NormKind,
    QueryGrowth,
)
from headstart.models.experts_config import ExpertScore, GroupScore
from headstart.models.state_config import StateNorm
from headstart.models.weights import FusionWeights

_MODULE, _MODULE_HIDDEN_FIRST = 5, 6
"""``Entry`` of ``src/pass/decoder.h``."""


_CHOICES = {name: number for kind in (ExpertScore, GroupScore, StateNorm) for number, name in enumerate(get_args(kind))}
"""As the library counts them."""


def shape_of(config: ModelConfig, precision: Precision, threads: int) -> Shape:
    """What all layers share."""
    attention, streams, inputs = config.attention, config.residual.streams, config.layer_inputs
    norms, growth, gate = (
        attention.qk_norm or HeadNorms(),
        attention.query_growth or QueryGrowth(0.0, 1),
        attention.gate,
    )
    return Shape(
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        heads=config.num_heads,
        layers=config.num_layers,
        precision=library_number(precision),
        threads=threads,
        norm=get_args(NormKind).index(config.norms.kind),
        activation=get_args(Activation).index(config.mlp.activation),
        gated=config.mlp.gated,
        parallel_residual=config.residual.parallel,
        joint_head_norms=norms.reach == "all",
        head_norm=get_args(NormKind).index(norms.kind),
        own_head_norms=norms.own,
        rotated_head_norms=norms.rotated,
        attention_gate=0 if gate is None else 1 + get_args(Gate).index(gate),
        tokens=config.vocab_size,
        cross=config.encoder is not None,
        norm_eps=config.norms.eps,
        attention_scale=config.score_scale,
        attention_softcap=attention.softcap or 0.0,
        logit_softcap=config.head.softcap or 0.0,
        embedding_scale=config.embedding.scale,
        tap_scale=config.residual.tap_scale,
        value_scale=attention.value_scale,
        qkv_clip=attention.qkv_clip or 0.0,
        growth=growth.weight,
        growth_trained=growth.trained,
        growth_everywhere=growth.everywhere,
        experts=_record(Experts, config.experts if config.has_experts else None),
        latent=_record(Latent, config.latent),
        compressed=_record(Compressed, config.compressed),
        indexer=_record(Indexer, None if config.latent is None else config.latent.indexer),
        convolution=_record(Convolution, config.convolution),
        mamba=_record(Mamba, config.mamba),
        mamba2=_record(Mamba2, config.mamba2),
        delta=_record(Delta, config.delta),
        inputs=Inputs() if inputs is None else Inputs(count=inputs.count, size=inputs.size, tokens=inputs.vocab_size),
        hyper=_record(Hyper, config.residual.hyper),
        streams=0 if streams is None else streams.count,
        side_rank=config.residual.side_rank or 0,
    )


def begin_with_fusion(shape: Shape, fusion: FusionWeights, vocab: int) -> None:
    """Of a decoder whose rows read states beside their tokens, and which says ``vocab`` of these."""
    shape.entry = _MODULE_HIDDEN_FIRST if fusion.hidden_first else _MODULE
    shape.features, shape.vocab = shape.hidden * (shape.hyper.count or 1), vocab


def layers_of(config: ModelConfig) -> list[Layer]:
    """What differs from layer to layer."""
    return [
        Layer(
            mixer=get_args(Mixer).index(layer.mixer),
            channel=get_args(Channel).index(layer.channel),
            window=layer.window or 0,
            chunk=layer.chunk or 0,
            rope=-1 if layer.rope is None else layer.rope,
            head_dim=config.head_dim_of(layer),
            value_dim=config.value_dim_of(layer),
            heads=config.heads_of(layer),
            kv_heads=config.kv_heads_of(layer),
            reads=-1 if layer.reads is None else layer.reads,
            values_are_keys=layer.values_are_keys,
            delays=layer.delays,
            chooses=config.latent is not None and config.latent.indexer_of(layer) is not None,
            ratio=0 if layer.compression is None else layer.compression.ratio,
            chosen=0 if layer.compression is None else layer.compression.chosen or 0,
            by_token=layer.by_token,
            mlp=_dense_size(config, layer),
            input=0 if config.layer_inputs is None or layer.input is None else 1 + layer.input,
            cuts=layer.sparsity > 0,
            cut=NormalDist().inv_cdf(layer.sparsity) if layer.sparsity else 0.0,
            mlp_limit=layer.mlp_limit or 0.0,
            expert_limit=layer.expert_limit or 0.0,
            mlp_gate_limit=(layer.cuts(layer.mlp_limit) or (0.0,))[0],
            expert_gate_limit=(layer.cuts(layer.expert_limit) or (0.0,))[0],
        )
        for layer in config.layers
    ]


def _dense_size(config: ModelConfig, layer: LayerConfig) -> int:
    """Of the channel part that all rows go through; 0: there is none."""
    if layer.channel == "none":
        return 0
    if layer.channel == "experts":
        assert config.experts is not None
        return config.experts.shared_size
    return config.mlp_size if layer.mlp_size is None else layer.mlp_size


def _record(kind: type[Any], config: object | None) -> Any:
    """A record of the library with what a configuration says by the same names; of none all is 0."""
    if config is None:
        return kind()
    said = {name: getattr(config, name) for name, _ in kind._fields_}
    return kind(**{name: 0 if value is None else _CHOICES.get(value, value) for name, value in said.items()})
