"""From the named tensors of a checkpoint to a decoder's canonical weights, strictly.

Names and shapes are settled from the headers alone: a missing, surplus or mis-shaped tensor is refused before
anything is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families import config_from_gguf, config_from_hf, tensor_layout
from headstart.models.families.base import CheckpointKind, TensorLayout
from headstart.models.weights import DecoderWeights, LayerWeights, LinearWeights, NormWeights, TensorSource

if TYPE_CHECKING:
    from headstart.models.checkpoint import Checkpoint

Shape = tuple[int, ...]
Fetch = Callable[[str, Shape], Tensor]
"""Name and shape of a tensor -> the tensor."""


def load_decoder(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[ModelConfig, DecoderWeights]:
    """Description and weights of an open checkpoint.

    Raises:
        CheckpointError: unknown architecture or unsupported feature; missing, surplus or mis-shaped tensors.
    """
    config = _config_of(checkpoint)
    return config, load_weights(checkpoint, config, checkpoint.kind, dtype)


def load_tables(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[Tensor, LinearWeights]:
    """The embedding and the head of an open checkpoint, without its layers.

    Raises:
        CheckpointError: as ``load_decoder``.
    """
    assembly, _ = _checked(checkpoint, _config_of(checkpoint), checkpoint.kind, dtype)
    return assembly.tables()


def _config_of(checkpoint: Checkpoint) -> ModelConfig:
    if checkpoint.kind == "hf":
        config = config_from_hf(checkpoint.metadata, checkpoint.name)
        return replace(config, tied_head=config.tied_head and not _has_own_head(checkpoint, config))
    return config_from_gguf(checkpoint.metadata, checkpoint.shapes(), checkpoint.name)


def _has_own_head(checkpoint: Checkpoint, config: ModelConfig) -> bool:
    """Whether the file holds an output head that is not the embedding. As in transformers, it is then the head,
    whatever the configuration says of ties."""
    layout, shapes = tensor_layout(config, "hf"), checkpoint.shapes()
    head, tables = f"{layout.head}.weight", [f"{before}{layout.embedding}.weight" for before in (layout.prefix, "")]
    stored = [name for name in tables if name in shapes]
    if head not in shapes or not stored:
        return False
    if shapes[head] != shapes[stored[0]]:
        return True
    return not torch.equal(checkpoint.read(head), checkpoint.read(stored[0]))


def load_weights(source: TensorSource, config: ModelConfig, kind: CheckpointKind, dtype: torch.dtype) -> DecoderWeights:
    """Read a decoder's weights: matrices in ``dtype``, norms and biases in float32.

    Where the head is tied, ``head.weight`` is ``embedding`` itself.

    Raises:
        CheckpointError: missing, surplus or mis-shaped tensors (all named, before any is read), or a tensor that
            does not hold floating-point numbers.
    """
    assembly, has_factors = _checked(source, config, kind, dtype)
    return assembly.decoder(has_factors)


def _checked(
    source: TensorSource, config: ModelConfig, kind: CheckpointKind, dtype: torch.dtype
) -> tuple[_Assembly, bool]:
    """What reads a decoder whose tensors are all there, and whether it has factors of its rotary frequencies."""
    layout = tensor_layout(config, kind)
    shapes = source.shapes()
    bare = f"{layout.embedding}.weight"
    prefix = "" if layout.prefix + bare not in shapes and bare in shapes else layout.prefix
    has_factors = bool(layout.rope_factors) and layout.rope_factors in shapes
    expected: dict[str, Shape] = {}

    def note(name: str, shape: Shape) -> Tensor:
        expected[name] = shape
        return torch.empty(shape, device="meta")

    def read(name: str, shape: Shape) -> Tensor:
        tensor = source.read(name)
        if tensor.shape != shape or not tensor.is_floating_point() or tensor.itemsize < 2:
            raise CheckpointError(
                f"tensor {name!r} holds {tensor.dtype} of shape {list(tensor.shape)} instead of floating-point "
                f"numbers of shape {list(shape)}; use an unquantised or a GGUF model."
            )
        return tensor

    embedding = f"{prefix}{layout.embedding}"
    if config.tied_head and f"{embedding}.weight" not in shapes and f"{layout.head}.weight" in shapes:
        embedding = layout.head  # what is tied may be stored under either name
    _Assembly(config, layout, prefix, embedding, dtype, note, lambda name: 0.0).decoder(has_factors)
    carries_nothing = re.compile("|".join(layout.ignored) or r"(?!)")

    def is_surplus(name: str) -> bool:
        known = name in expected or name == f"{layout.head}.weight"  # files may hold a copy of a tied head
        return not (known or carries_nothing.fullmatch(name.removeprefix(prefix)))

    _check_names(config, shapes, expected, [name for name in shapes if is_surplus(name)])
    return _Assembly(config, layout, prefix, embedding, dtype, read, source.stored_bits), has_factors


def _check_names(
    config: ModelConfig,
    shapes: Mapping[str, Shape],
    expected: Mapping[str, Shape],
    surplus: list[str],
) -> None:
    faults = []
    missing = [f"{name} {list(shape)}" for name, shape in expected.items() if name not in shapes]
    if missing:
        faults.append(f"lacks {_listed(missing)}")
    if surplus:
        faults.append(f"has surplus {_listed([f'{name} {list(shapes[name])}' for name in surplus])}")
    wrong = [
        f"{name} {list(shapes[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and tuple(shapes[name]) != shape
    ]
    if wrong:
        faults.append(f"has mis-shaped {_listed(wrong)}")
    if faults:
        model = f"model {config.name!r}" if config.name else "the checkpoint"
        raise CheckpointError(
            f"{model} does not hold what its configuration promises of a {config.family} decoder: "
            f"it {' and '.join(faults)}; fetch or convert the model again."
        )


def _listed(items: list[str], most: int = 4) -> str:
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


@dataclass(frozen=True)
class _Assembly:
    """How a decoder is put together. Run twice: once to learn what is needed, once to read it."""

    config: ModelConfig
    layout: TensorLayout
    prefix: str
    embedding: str
    """Name of the table in the file."""
    dtype: torch.dtype
    fetch: Fetch
    stored_bits: Callable[[str], float]
    """Of a tensor's weights in the file."""

    def decoder(self, has_factors: bool) -> DecoderWeights:
        config, layout = self.config, self.layout
        embedding, head = self.tables()
        positions = factors = None
        if config.learned_positions:
            positions = self._matrix(self.prefix + layout.positions, (config.max_positions, config.hidden_size))
        if has_factors:
            factors = self.fetch(layout.rope_factors, (config.ropes[0].dim // 2,)).float()
        return DecoderWeights(
            embedding=embedding,
            layers=tuple(self._layer(i) for i in range(config.num_layers)),
            final_norm=self._norm(layout.final_norm, "final_norm", config.hidden_size),
            head=head,
            positions=positions,
            rope_factors=factors,
        )

    def tables(self) -> tuple[Tensor, LinearWeights]:
        config, layout = self.config, self.layout
        table = (config.vocab_size, config.hidden_size)
        name = self.embedding
        embedding = self._matrix(name, table)
        if config.tied_head:
            return embedding, LinearWeights(embedding, stored_bits=self.stored_bits(f"{name}.weight"))
        bits = self.stored_bits(f"{layout.head}.weight")
        return embedding, LinearWeights(self._matrix(layout.head, table), stored_bits=bits)

    def _layer(self, index: int) -> LayerWeights:
        config, names = self.config, self.layout.layer
        hidden, head_dim = config.hidden_size, config.head_dim
        q, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
        qkv = {"qkv": q + 2 * kv} if "qkv" in names else {"q": q, "k": kv, "v": kv}
        ups = 2 * config.mlp_size if config.gated_mlp else config.mlp_size
        up = {"gate": config.mlp_size, "up": config.mlp_size} if "gate" in names else {"up": ups}

        def norm(role: str, size: int = hidden) -> NormWeights:
            return self._norm(names[role].format(i=index), role, size)

        return LayerWeights(
            attention_norm=norm("attention_norm"),
            qkv=self._linear(index, qkv, hidden, config.qkv_bias),
            output=self._linear(index, {"output": hidden}, q, config.output_bias),
            mlp_norm=norm("mlp_norm"),
            up=self._linear(index, up, hidden, config.mlp_bias),
            down=self._linear(index, {"down": hidden}, config.mlp_size, config.mlp_bias),
            q_norm=norm("q_norm", head_dim) if config.qk_norm else None,
            k_norm=norm("k_norm", head_dim) if config.qk_norm else None,
            attention_post_norm=norm("attention_post_norm") if config.post_norms else None,
            mlp_post_norm=norm("mlp_post_norm") if config.post_norms else None,
        )

    def _linear(self, index: int, parts: Mapping[str, int], inputs: int, has_bias: bool) -> LinearWeights:
        """One matrix from one or several stored ones (role -> outputs), stacked along their outputs."""
        weights, biases, bits = [], [], []
        for role, outputs in parts.items():
            name = self.prefix + self.layout.layer[role].format(i=index)
            shape = (inputs, outputs) if self.layout.transposed else (outputs, inputs)
            weight = self._matrix(name, shape)
            weights.append(self._convert(role, weight.T if self.layout.transposed else weight))
            bits.append(self.stored_bits(f"{name}.weight"))
            if has_bias:
                biases.append(self._convert(role, self.fetch(f"{name}.bias", (outputs,)).float()))
        return LinearWeights(_stacked(weights), _stacked(biases) if has_bias else None, max(bits))

    def _matrix(self, name: str, shape: Shape) -> Tensor:
        return self.fetch(f"{name}.weight", shape).to(self.dtype)

    def _norm(self, name: str, role: str, size: int) -> NormWeights:
        name = self.prefix + name
        weight = self._convert(role, self.fetch(f"{name}.weight", (size,)).float())
        bias = self.fetch(f"{name}.bias", (size,)).float() if self.config.norm == "layer" else None
        return NormWeights(weight, bias)

    def _convert(self, role: str, tensor: Tensor) -> Tensor:
        convert = self.layout.convert.get(role)
        return convert(tensor, self.config) if convert is not None else tensor


def _stacked(tensors: list[Tensor]) -> Tensor:
    first, *others = tensors
    if first.is_meta:
        # Concatenating shapes alone would import all of torch's compiler, which takes seconds.
        return first.new_empty(sum(map(len, tensors)), *first.shape[1:])
    return torch.cat(tensors) if others else first.contiguous()
