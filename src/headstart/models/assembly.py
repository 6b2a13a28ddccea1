"""How a decoder is put together from the tensors of a file, by the names that its family's layout gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.models.compressed_assembly import compressed_weights
from headstart.models.config import HeadNorms, LayerConfig, LayerInputsConfig
from headstart.models.experts_config import ExpertsConfig
from headstart.models.families.base import LayerNumber
from headstart.models.latent_assembly import latent_weights
from headstart.models.layout_tensors import LayoutTensors, Shape, stacked
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.state_assembly import convolution_weights, delta_weights, mamba2_weights, mamba_weights
from headstart.models.stored import FileMatrix, MatrixPart
from headstart.models.streams_config import StreamsConfig
from headstart.models.weights import (
    AttentionWeights,
    ChannelWeights,
    DecoderWeights,
    ExpertsWeights,
    HyperWeights,
    LayerInputsWeights,
    LayerInputWeights,
    LayerWeights,
    MixerWeights,
    MlpAndExpertsWeights,
    MlpWeights,
    SideWeights,
    StreamEndsWeights,
    StreamsWeights,
    TwoMixersWeights,
)


@dataclass(frozen=True)
class Assembly(LayoutTensors):
    """How a decoder is put together."""

    embedding: str
    """Name of the table in the file."""

    def decoder(self, has_factors: bool) -> DecoderWeights:
        config, layout = self.config, self.layout
        embedding, head_table = self.tables()
        bias = None
        if config.head.bias:
            bias = self.fetch(f"{layout.head}.bias", (config.vocab_size,)).float()
        head = LinearWeights(head_table, bias, stored_bits=self.stored_bits(f"{self._head_name}.weight"))
        positions = factors = None
        if config.embedding.positions == "learned":
            table = (layout.first_position + config.max_positions, config.hidden_size)
            positions = self.fetch(f"{self.prefix}{layout.positions}.weight", table)[layout.first_position :]
            positions = positions.to(self.dtype)
        if has_factors:
            factors = self.fetch(layout.rope_factors, (config.ropes[0].dim // 2,)).float()
        final_norm = self.norm(layout.final_norm, "final_norm", config.hidden_size)
        embedding_norm = None
        if config.embedding.norm:
            embedding_norm = self.norm(layout.embedding_norm, "embedding_norm", config.hidden_size)
        hyper = config.residual.hyper
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self.layer(LayerNumber(i), layer) for i, layer in enumerate(config.layers)),
            final_norm=final_norm,
            head=head,
            positions=positions,
            rope_factors=factors,
            embedding_norm=embedding_norm,
            streams=None if config.residual.streams is None else self._stream_ends(config.residual.streams),
            hyper_end=self.hyper(0, "end", (hyper.count,)) if hyper is not None and hyper.merges else None,
            layer_inputs=None if config.layer_inputs is None else self._layer_inputs(config.layer_inputs),
        )

    def tables(self) -> tuple[FileMatrix, FileMatrix]:
        embedding = self.table(self.embedding)
        return embedding, embedding if self.config.head.tied else self.table(self._head_name)

    @property
    def _head_name(self) -> str:
        return self.embedding if self.config.head.tied else self.layout.head

    def table(self, name: str) -> FileMatrix:
        """An embedding or an output head."""
        size = self.config.hidden_size
        part = self.part(f"{name}.weight", (self.config.vocab_size, size))
        return FileMatrix((part,), size, self.dtype, keeps=True)

    def stream_norm(self, name: str, role: str = "") -> NormWeights:
        """A norm of the stream that is none of the decoder's own; ``role``: the one of that whose values it has."""
        return self.norm(name, role, self.config.hidden_size)

    def matrix(self, name: str, shape: Shape) -> LinearWeights:
        """A matrix [out, in] that is none of the decoder's own."""
        part = self.part(f"{name}.weight", shape)
        return LinearWeights(FileMatrix((part,), shape[1], self.dtype), stored_bits=self.stored_bits(f"{name}.weight"))

    def beside(self, names: list[str], shape: Shape) -> LinearWeights:
        """One matrix of several [out, in] that read inputs of their own, side by side."""
        if len(names) == 1:
            return self.matrix(names[0], shape)
        outputs, inputs = shape
        parts = [self.part(f"{name}.weight", shape) for name in names]
        joint = MatrixPart(parts[0].name, outputs, lambda: torch.cat([part.read() for part in parts], dim=1))
        bits = max(self.stored_bits(part.name) for part in parts)
        return LinearWeights(FileMatrix((joint,), inputs * len(names), self.dtype), stored_bits=bits)

    def layer(self, index: int, layer: LayerConfig) -> LayerWeights:
        """The layer that the names give this number."""
        config = self.config

        def norm(role: str) -> NormWeights:
            return self.norm(self.layout.layer.get(role, "").format(i=index), role, config.hidden_size)

        mixes, has_channel = layer.mixer != "none", layer.channel != "none"
        reads_stream = layer.channel == "mlp+experts"  # whose norms are its own
        return LayerWeights(
            mixer=self._mixer(index, layer) if mixes else None,
            channel=self._channel(index, layer) if has_channel else None,
            attention_norm=norm("attention_norm") if config.norms.pre and mixes else None,
            mlp_norm=norm("mlp_norm")
            if config.norms.pre and has_channel and not (config.norms.shared or reads_stream)
            else None,
            attention_post_norm=norm("attention_post_norm") if config.norms.post else None,
            mlp_post_norm=norm("mlp_post_norm") if config.norms.post else None,
            side=None if config.residual.side_rank is None else self._side(index, config.residual.side_rank),
            streams=None if config.residual.streams is None else self._streams(index, config.residual.streams),
            hyper=None
            if config.residual.hyper is None
            else (
                self.hyper(index, "mixer", config.residual.hyper.told),
                self.hyper(index, "channel", config.residual.hyper.told),
            ),
            input=None
            if config.layer_inputs is None or layer.input is None
            else self._layer_input(index, config.layer_inputs),
            scale=self.vector(index, "layer_scale", 1) if config.residual.layer_scales else None,
        )

    def _side(self, index: int, rank: int) -> SideWeights:
        hidden = self.config.hidden_size
        return SideWeights(
            down=self.linear(index, {"side_down": rank}, hidden, False),
            up=self.linear(index, {"side_up": hidden}, rank, False),
            norm=self._norm_of(index, "side_norm"),
        )

    def _streams(self, index: int, streams: StreamsConfig) -> StreamsWeights:
        hidden, count = self.config.hidden_size, streams.count
        return StreamsWeights(
            router=self.linear(index, {"stream_router": count}, hidden, False),
            router_norm=self._norm_of(index, "stream_norm"),
            predict=self.linear(index, {"stream_predict": count * count}, count, False),
            correct=self.linear(index, {"stream_correct": count}, count, False),
            scale=self.vector(index, "stream_scale", hidden) if streams.scaled else None,
        )

    def hyper(self, index: int, part: str, told: tuple[int, ...]) -> HyperWeights:
        size = sum(told)
        return HyperWeights(
            mix=self.vector(index, f"{part}_mix", told[0] * self.config.hidden_size, size).view(size, told[0], -1),
            base=self.vector(index, f"{part}_base", size),
            scale=self.vector(index, f"{part}_scale", len(told)),
        )

    def _stream_ends(self, streams: StreamsConfig) -> StreamEndsWeights:
        hidden = self.config.hidden_size

        def linears(name: str) -> tuple[LinearWeights, ...]:
            others = range(streams.count - 1)
            if "{i}" in name:
                names = (f"{self.prefix}{name.format(i=stream)}" for stream in others)
                return tuple(self.matrix(each, (hidden, hidden)) for each in names)
            stack = f"{self.prefix}{name}.weight"
            parts = (self.part(stack, (hidden, hidden), index=stream, count=len(others)) for stream in others)
            bits = self.stored_bits(stack)
            return tuple(LinearWeights(FileMatrix((part,), hidden, self.dtype), stored_bits=bits) for part in parts)

        return StreamEndsWeights(linears(self.layout.stream_spread), linears(self.layout.stream_merge))

    def _layer_input(self, index: int, inputs: LayerInputsConfig) -> LayerInputWeights:
        hidden = self.config.hidden_size
        return LayerInputWeights(
            gate=self.linear(index, {"input_gate": inputs.size}, hidden, False),
            output=self.linear(index, {"input_output": hidden}, inputs.size, False),
            norm=self._norm_of(index, "input_norm"),
        )

    def _layer_inputs(self, inputs: LayerInputsConfig) -> LayerInputsWeights:
        layout, size = self.layout, inputs.count * inputs.size
        table = self.part(f"{self.prefix}{layout.inputs_table}.weight", (inputs.vocab_size, size))
        return LayerInputsWeights(
            projection=self.matrix(f"{self.prefix}{layout.inputs_projection}", (size, self.config.hidden_size)),
            norm=self.norm(layout.inputs_norm, "inputs_norm", inputs.size),
            table=FileMatrix((table,), size, self.dtype, keeps=True),
        )

    def _norm_of(self, index: int, role: str) -> NormWeights:
        return self.norm(self.layout.layer[role].format(i=index), role, self.config.hidden_size)

    def _mixer(self, index: int, layer: LayerConfig) -> MixerWeights:
        config = self.config
        if layer.mixer == "latent":
            assert config.latent is not None
            return latent_weights(self, index, config.latent, layer)
        if layer.mixer == "compressed":
            assert config.compressed is not None
            return compressed_weights(self, index, layer, config.compressed)
        if layer.mixer == "convolution":
            assert config.convolution is not None
            return convolution_weights(self, index, config.convolution)
        if layer.mixer == "mamba":
            assert config.mamba is not None
            return mamba_weights(self, index, config.mamba)
        if layer.mixer in ("mamba2", "attention+mamba2"):
            assert config.mamba2 is not None
            mamba = mamba2_weights(self, index, config.mamba2)
            return mamba if layer.mixer == "mamba2" else TwoMixersWeights(self._attention(index, layer), mamba)
        if layer.mixer == "delta":
            assert config.delta is not None
            return delta_weights(self, index, config.delta)
        return self._attention(index, layer)

    def _channel(self, index: int, layer: LayerConfig) -> ChannelWeights:
        config = self.config
        if layer.channel == "experts":
            assert config.experts is not None
            return self._experts(index, config.experts, layer.by_token)
        mlp = self._mlp(index, ("gate", "up", "down"), config.mlp_size if layer.mlp_size is None else layer.mlp_size)
        if layer.channel == "mlp":
            return mlp
        assert config.experts is not None
        return MlpAndExpertsWeights(
            mlp=mlp,
            experts=self._experts(index, config.experts),
            mlp_norm=self._norm_of(index, "mlp_norm"),
            mlp_post_norm=self._norm_of(index, "dense_post_norm"),
            experts_norm=self._norm_of(index, "experts_norm"),
            experts_post_norm=self._norm_of(index, "experts_post_norm"),
        )

    def _attention(self, index: int, layer: LayerConfig) -> AttentionWeights:
        config = self.config
        size, heads, kv_heads = config.head_dim_of(layer), config.heads_of(layer), config.kv_heads_of(layer)
        value = config.value_dim_of(layer)
        q, k, v, seen = heads * size, kv_heads * size, kv_heads * value, heads * value
        qkv = {"qkv": q + k + v} if "qkv" in self.layout.layer else {"q": q, "k": k, "v": v}
        if layer.values_are_keys:
            qkv.pop("v")
        if layer.reads is not None:
            qkv = {"q": q}
        q_norm = k_norm = None
        if config.attention.qk_norm is not None:
            q_norm = self._head_norm(index, "q_norm", config.attention.qk_norm, heads, size)
            if layer.reads is None:
                k_norm = self._head_norm(index, "k_norm", config.attention.qk_norm, kv_heads, size)
        return AttentionWeights(
            qkv=self.linear(index, qkv, config.hidden_size, config.attention.qkv_bias),
            output=self.linear(index, {"output": config.hidden_size}, seen, config.attention.output_bias),
            q_norm=q_norm,
            k_norm=k_norm,
            sinks=self.vector(index, "sinks", heads) if config.attention.sinks and layer.sinks else None,
            gate=self.linear(
                index, {"attention_gate": heads if config.attention.gate == "head" else seen}, config.hidden_size, False
            )
            if config.attention.gate
            else None,
        )

    def _head_norm(self, index: int, role: str, norms: HeadNorms, heads: int, size: int) -> NormWeights:
        shape = (heads * size,) if norms.reach == "all" else (heads, size) if norms.own else (size,)
        if not norms.learnt:
            return self.blank_norm(shape, norms.bias)
        name = self.prefix + self.layout.layer[role]
        if "{h}" in name:
            of_heads = [self.fetch(f"{name.format(i=index, h=head)}.weight", (size,)) for head in range(heads)]
            return NormWeights(stacked(of_heads).float().view(shape))
        name = name.format(i=index)
        weight = self.converted(role, self.fetch(f"{name}.weight", shape).float())
        bias = self.converted(role, self.fetch(f"{name}.bias", shape).float()) if norms.bias else None
        return NormWeights(weight, bias)

    def _mlp(self, index: int, roles: tuple[str, str, str], size: int) -> MlpWeights:
        """``roles``: of gate, up and down."""
        config = self.config
        gate, up, down = roles
        if not config.mlp.gated:
            raised = {up: size}
        else:
            raised = {gate: size, up: size} if gate in self.layout.layer else {up: 2 * size}
        return MlpWeights(
            up=self.linear(index, raised, config.hidden_size, config.mlp.bias),
            down=self.linear(index, {down: config.hidden_size}, size, config.mlp.bias),
            curve=self._curve(index) if config.mlp.activation == "xielu" else None,
        )

    def _curve(self, index: int) -> Tensor:
        return stacked([self.vector(index, f"curve_{part}", 1) for part in ("above", "below", "slope", "least")])

    def _experts(self, index: int, experts: ExpertsConfig, by_token: bool = False) -> ExpertsWeights:
        config, names = self.config, self.layout.layer
        hidden, size, count = config.hidden_size, experts.size, experts.count
        raised = {"expert_gate": size, "expert_up": size} if "expert_gate" in names else {"expert_up": 2 * size}
        raised = raised if experts.gated else {"expert_up": size}
        biases: list[tuple[Tensor | None, Tensor | None]] = [(None, None)] * count
        if experts.bias:
            of_ups = [self.vector(index, f"{role}_bias", rows, count) for role, rows in raised.items()]
            of_downs = self.vector(index, "expert_down_bias", hidden, count)
            biases = [(stacked([rows[i] for rows in of_ups]), of_downs[i]) for i in range(count)]
        mlps = tuple(
            MlpWeights(
                self._of_expert(index, expert, raised, hidden, of_up),
                self._of_expert(index, expert, {"expert_down": hidden}, size, of_down),
            )
            for expert, (of_up, of_down) in enumerate(biases)
        )
        corrected = experts.correction and not by_token
        shared = shared_gate = None
        if experts.shared_size:
            shared = self._mlp(index, ("shared_gate", "shared_up", "shared_down"), experts.shared_size)
        if experts.shared_gate:
            shared_gate = self._shared_gate(index)
        return ExpertsWeights(
            router=self.linear(index, {"router": count + experts.idle}, hidden, experts.router_bias),
            experts=mlps,
            correction=self.vector(index, "router_correction", count + experts.idle) if corrected else None,
            shared=shared,
            shared_gate=shared_gate,
            router_norm=NormWeights(self.vector(index, "router_norm", hidden)) if experts.router_norm else None,
            own_scales=self.vector(index, "expert_scales", count) if experts.own_scales else None,
            table=self.numbers(index, "expert_table", (config.vocab_size, experts.used), count) if by_token else None,
        )

    def _shared_gate(self, index: int) -> LinearWeights:
        hidden = self.config.hidden_size
        if "shared_scale" in self.layout.layer:
            return self.linear(index, {"shared_scale": 1}, hidden, False)
        return LinearWeights(torch.zeros(1, hidden, dtype=self.dtype, device=self.device))

    def _of_expert(
        self, index: int, expert: int, parts: Mapping[str, int], inputs: int, bias: Tensor | None
    ) -> LinearWeights:
        """A matrix of one expert: tensors of its own, or its part of those in which all experts' are stacked."""
        matrices, bits = [], 0.0
        for role, outputs in parts.items():
            name = self.name_of(index, role, expert)
            stacked = None if "{e}" in self.layout.layer[role] else expert
            count = self.config.experts.count if self.config.experts is not None and stacked is not None else None
            turned = ("transposed", "below") if role == "expert_down" else ("transposed",)
            transposed = stacked is not None and self.layout.stacks in turned
            convert = self.layout.convert.get(role)
            matrices.append(self.part(name, (outputs, inputs), transposed, convert, stacked, count))
            bits = max(bits, self.stored_bits(name))
        return LinearWeights(FileMatrix(tuple(matrices), inputs, self.dtype), bias, bits)
