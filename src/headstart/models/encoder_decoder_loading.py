"""From the named tensors of a checkpoint to an encoder-decoder model's canonical weights, strictly.

As in ``models.weight_loading``: names and shapes are settled from the headers alone, and matrices stay in the file
until somebody asks for one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder_weights import EncoderDecoderWeights, StackWeights
from headstart.models.families import encoder_decoder_layout
from headstart.models.families.encoder_decoder import EncoderDecoderLayout, StackLayout
from headstart.models.layout_tensors import Shape, require_weights, stacked
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.stored import FileMatrix, MatrixPart
from headstart.models.weight_loading import check_names, config_of
from headstart.models.weights import AttentionWeights, CrossWeights, LayerWeights, MlpWeights, TensorSource


def load_encoder_decoder(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[ModelConfig, EncoderDecoderWeights]:
    """Description and weights of an open checkpoint that has an encoder.

    Raises:
        CheckpointError: unknown architecture or unsupported feature; missing, surplus or mis-shaped tensors.
    """
    config = config_of(checkpoint)
    layout = encoder_decoder_layout(config, checkpoint.kind)
    shapes = checkpoint.shapes()
    prefix = _absent_prefix(layout, shapes)
    tables = [name for name in layout.embeddings if f"{name.removeprefix(prefix)}.weight" in shapes]
    head = f"{layout.head}.weight"
    # What is tied may be stored under either name.
    table = tables[0] if tables else layout.head if head in shapes else layout.embeddings[0]

    def assembly(source: TensorSource | None) -> _Assembly:
        return _Assembly(config, layout, dtype, table, shapes.keys(), prefix, source)

    learnt = assembly(None)
    learnt.weights()
    known = {*learnt.expected, head, *(f"{name.removeprefix(prefix)}.weight" for name in layout.embeddings)}
    carries_nothing = re.compile("|".join((*layout.ignored, *_OLD_BUFFERS)))
    surplus = [name for name in shapes if name not in known and not carries_nothing.fullmatch(name)]
    check_names(config, shapes, learnt.expected, surplus)
    return config, replace(assembly(checkpoint).weights(), identity=checkpoint.identity())


_OLD_BUFFERS = (r"(model\.)?(encoder|decoder)\.version",)


def _absent_prefix(layout: EncoderDecoderLayout, shapes: Mapping[str, Shape]) -> str:
    """What the file leaves out in front of its names, as files of the bare model do; empty: nothing."""
    stored = [name for name in layout.embeddings if f"{name}.weight" in shapes]
    bare = [name for name in layout.embeddings if f"{name.removeprefix(_PREFIX)}.weight" in shapes]
    return _PREFIX if bare and not stored else ""


_PREFIX = "model."


@dataclass(frozen=True)
class _Half:
    """The sizes of an encoder or a decoder."""

    layers: int
    heads: int
    head_dim: int
    mlp: int
    positions: int


@dataclass(frozen=True)
class _Assembly:
    """How a model is put together. Run twice: once to learn what is needed, once to read it."""

    config: ModelConfig
    layout: EncoderDecoderLayout
    dtype: torch.dtype
    table: str
    """Name of the embedding in the file."""
    stored: Collection[str]
    """Names in the file."""
    prefix: str
    """Left out in front of names."""
    source: TensorSource | None
    """None: what is needed is to be learnt."""
    expected: dict[str, Shape] = field(default_factory=dict)

    def weights(self) -> EncoderDecoderWeights:
        config, layout = self.config, self.layout
        encoder = config.encoder
        assert encoder is not None
        size = (config.vocab_size, config.hidden_size)
        embedding = self._fetch(f"{self.table}.weight", size).to(self.dtype)
        head = embedding if config.head.tied else self._fetch(f"{layout.head}.weight", size).to(self.dtype)
        bias = None
        if encoder.head_bias and layout.head_bias in self.stored:
            bias = self._fetch(layout.head_bias, (1, config.vocab_size)).float()[0]
        reading, writing = (
            _Half(each.num_layers, each.num_heads, each.head_dim, each.mlp_size, each.max_positions)
            for each in (encoder, config)
        )
        decoder = self._stack(layout.decoder, writing, reads_memory=True)
        if decoder.final_norm is not None and config.folded.logit_divisor != 1.0:
            # Where every pass would multiply, the norm's weight does.
            scaled = decoder.final_norm.weight / config.folded.logit_divisor
            decoder = replace(decoder, final_norm=replace(decoder.final_norm, weight=scaled))
        return EncoderDecoderWeights(
            embedding=embedding,
            head=LinearWeights(head, bias),
            encoder=self._stack(layout.encoder, reading),
            decoder=decoder,
        )

    def _stack(self, names: StackLayout, half: _Half, reads_memory: bool = False) -> StackWeights:
        config, encoder = self.config, self.config.encoder
        assert encoder is not None
        hidden = config.hidden_size
        convolutions: tuple[LinearWeights, ...] = ()
        if names.convolutions and encoder.mel_bins is not None:
            inputs = (encoder.mel_bins, *[hidden] * (len(names.convolutions) - 1))
            convolutions = tuple(map(self._convolution, names.convolutions, inputs))
        positions, places = None, f"{names.positions}.weight"
        # transformers computes a table of sines where the file has none, and else takes the file's.
        kept = encoder.positions == "sinusoid" and places.removeprefix(self.prefix) in self.stored
        if encoder.positions == "learned" or kept:
            table = self._fetch(places, (half.positions + encoder.first_position, hidden))
            positions = table[encoder.first_position :].to(self.dtype)
        relative: tuple[Tensor, ...] = ()
        if encoder.relative is not None:
            buckets = (encoder.relative.buckets, half.heads)
            tables = range(half.layers if encoder.relative.in_every_layer else 1)
            relative = tuple(self._fetch(f"{names.relative.format(i=i)}.weight", buckets).float() for i in tables)
        embedding = None
        if encoder.vocab_size is not None and names is self.layout.encoder:
            size = (encoder.vocab_size, hidden)
            embedding = self._fetch(f"{self.layout.encoder_embedding}.weight", size).to(self.dtype)
        return StackWeights(
            embedding=embedding,
            layers=tuple(self._layer(names.layer, index, half, reads_memory) for index in range(half.layers)),
            embedding_norm=self._norm(names.embedding_norm) if encoder.embedding_norm else None,
            final_norm=self._norm(names.final_norm) if encoder.final_norm else None,
            positions=positions,
            relative=relative,
            convolutions=convolutions,
        )

    def _layer(self, names: Mapping[str, str], index: int, half: _Half, reads_memory: bool) -> LayerWeights:
        config, hidden = self.config, self.config.hidden_size
        inner = half.heads * half.head_dim
        ups = {"gate": half.mlp, "up": half.mlp} if config.mlp.gated else {"up": half.mlp}
        return LayerWeights(
            mixer=AttentionWeights(
                self._linear(names, index, {"q": inner, "k": inner, "v": inner}, hidden, config.attention.qkv_bias),
                self._linear(names, index, {"output": hidden}, inner, config.attention.output_bias),
            ),
            channel=MlpWeights(
                self._linear(names, index, ups, hidden, config.mlp.bias),
                self._linear(names, index, {"down": hidden}, half.mlp, config.mlp.bias),
            ),
            attention_norm=self._norm(names["attention_norm"].format(i=index)),
            mlp_norm=self._norm(names["mlp_norm"].format(i=index)),
            cross=self._cross(index) if reads_memory else None,
        )

    def _cross(self, index: int) -> CrossWeights:
        config, names = self.config, self.layout.decoder.layer
        hidden, inner = config.hidden_size, config.num_heads * config.head_dim
        return CrossWeights(
            norm=self._norm(names["cross_norm"].format(i=index)),
            q=self._linear(names, index, {"cross_q": inner}, hidden, config.attention.qkv_bias),
            kv=self._linear(names, index, {"cross_k": inner, "cross_v": inner}, hidden, config.attention.qkv_bias),
            output=self._linear(names, index, {"cross_output": hidden}, inner, config.attention.output_bias),
        )

    def _linear(
        self, names: Mapping[str, str], index: int, parts: Mapping[str, int], inputs: int, has_bias: bool
    ) -> LinearWeights:
        """One matrix from one or several stored ones (role -> outputs), stacked along their outputs."""
        stored = {names[role].format(i=index): outputs for role, outputs in parts.items()}
        matrices = tuple(self._part(name, (outputs, inputs)) for name, outputs in stored.items())
        bias = None
        if has_bias:
            roles = zip(parts, stored.items(), strict=True)
            bias = stacked([self._bias(role, name, outputs) for role, (name, outputs) in roles])
        return LinearWeights(FileMatrix(matrices, inputs, self.dtype), bias)

    def _bias(self, role: str, name: str, outputs: int) -> Tensor:
        encoder = self.config.encoder
        assert encoder is not None
        if role in ("k", "cross_k") and not encoder.key_bias:
            return torch.zeros(outputs, device="meta" if self.source is None else "cpu")
        return self._fetch(f"{name}.bias", (outputs,)).float()

    def _part(self, name: str, shape: Shape) -> MatrixPart:
        name = f"{name.removeprefix(self.prefix)}.weight"
        if self.source is None:
            self._fetch(name, shape)
            return MatrixPart(name, shape[0], lambda: torch.empty(shape, device="meta"))
        stored = self.source.stored(name)
        require_weights(name, stored, shape)
        return MatrixPart(name, shape[0], lambda: self._fetch(name, shape).to(self.dtype), stored)

    def _convolution(self, name: str, inputs: int) -> LinearWeights:
        """[out, in, 3] as [out, in * 3]."""
        hidden = self.config.hidden_size
        weight = self._fetch(f"{name}.weight", (hidden, inputs, 3)).to(self.dtype)
        return LinearWeights(weight.flatten(1), self._fetch(f"{name}.bias", (hidden,)).float())

    def _norm(self, name: str) -> NormWeights:
        size = (self.config.hidden_size,)
        weight = self._fetch(f"{name}.weight", size).float()
        return NormWeights(
            weight, self._fetch(f"{name}.bias", size).float() if self.config.norms.kind == "layer" else None
        )

    def _fetch(self, name: str, shape: Shape) -> Tensor:
        name = name.removeprefix(self.prefix)
        if self.source is None:
            self.expected[name] = shape
            return torch.empty(shape, device="meta")
        require_weights(name, self.source.stored(name), shape)
        return self.source.read(name)
