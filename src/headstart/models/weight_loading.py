"""From the named tensors of a checkpoint to a decoder's canonical weights, strictly.

Names and shapes are settled from the headers alone: a missing, surplus or mis-shaped tensor is refused before
anything is read. Matrices stay in the file until somebody asks for one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.config import ModelConfig
from headstart.models.families import config_from_gguf, config_from_hf, encoder_decoder_layout, tensor_layout
from headstart.models.families.base import CheckpointKind, Convert, TensorLayout
from headstart.models.stored import FileMatrix, MatrixPart, StoredTensor
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
    config = config_of(checkpoint)
    weights = load_weights(checkpoint, config, checkpoint.kind, dtype)
    return config, weights.identified(checkpoint.identity())


def load_tables(checkpoint: Checkpoint, dtype: torch.dtype) -> tuple[FileMatrix, FileMatrix]:
    """The embedding and the head of an open checkpoint, the same where it is tied, without its layers.

    Raises:
        CheckpointError: as ``load_decoder``.
    """
    assembly, _ = _checked(checkpoint, config_of(checkpoint), checkpoint.kind, dtype)
    return assembly.tables()


def config_of(checkpoint: Checkpoint) -> ModelConfig:
    """Description of an open checkpoint; nothing of its weights is read.

    Raises:
        CheckpointError: unknown architecture or unsupported feature.
    """
    if checkpoint.kind == "hf":
        config = config_from_hf(checkpoint.metadata, checkpoint.name)
        return replace(config, tied_head=config.tied_head and not _has_own_head(checkpoint, config))
    return config_from_gguf(checkpoint.metadata, checkpoint.shapes(), checkpoint.name)


def _has_own_head(checkpoint: Checkpoint, config: ModelConfig) -> bool:
    """Whether the file holds an output head that is not the embedding. As in transformers, it is then the head,
    whatever the configuration says of ties."""
    shapes = checkpoint.shapes()
    if config.encoder is not None:
        names = encoder_decoder_layout(config)
        head = f"{names.head}.weight"
        tables = [f"{name}.weight" for each in names.embeddings for name in (each, each.removeprefix("model."))]
    else:
        layout = tensor_layout(config, "hf")
        head, tables = f"{layout.head}.weight", [f"{before}{layout.embedding}.weight" for before in (layout.prefix, "")]
    stored = [name for name in tables if name in shapes]
    if head not in shapes or not stored:
        return False
    if shapes[head] != shapes[stored[0]]:
        return True
    return not torch.equal(checkpoint.read(head), checkpoint.read(stored[0]))


def load_weights(source: TensorSource, config: ModelConfig, kind: CheckpointKind, dtype: torch.dtype) -> DecoderWeights:
    """Read a decoder's norms and biases, in float32, and say where its matrices are, which give ``dtype``.

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
    if config.encoder is not None:
        raise CheckpointError(
            f"model {config.name!r} has an encoder, which cannot be used here; name a model without one."
        )
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
        require_weights(name, source.stored(name), shape)
        return source.read(name)

    embedding = f"{prefix}{layout.embedding}"
    if config.tied_head and f"{embedding}.weight" not in shapes and f"{layout.head}.weight" in shapes:
        embedding = layout.head  # what is tied may be stored under either name
    _Assembly(config, layout, prefix, embedding, dtype, note, None).decoder(has_factors)
    carries_nothing = re.compile("|".join(layout.ignored) or r"(?!)")

    def is_surplus(name: str) -> bool:
        known = name in expected or name == f"{layout.head}.weight"  # files may hold a copy of a tied head
        return not (known or carries_nothing.fullmatch(name.removeprefix(prefix)))

    check_names(config, shapes, expected, [name for name in shapes if is_surplus(name)])
    return _Assembly(config, layout, prefix, embedding, dtype, read, source), has_factors


def check_names(
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
    source: TensorSource | None
    """None: what is needed is to be learnt."""
    orders: dict[tuple[Convert, int], NDArray[np.int32]] = field(default_factory=dict)
    """Of rows, by conversion and number."""

    def decoder(self, has_factors: bool) -> DecoderWeights:
        config, layout = self.config, self.layout
        embedding, head_table = self.tables()
        head = LinearWeights(head_table, stored_bits=self._stored_bits(self._head_name))
        positions = factors = None
        if config.learned_positions:
            table = (config.max_positions, config.hidden_size)
            positions = self.fetch(f"{self.prefix}{layout.positions}.weight", table).to(self.dtype)
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

    def tables(self) -> tuple[FileMatrix, FileMatrix]:
        embedding = self._table(self.embedding)
        return embedding, embedding if self.config.tied_head else self._table(self._head_name)

    @property
    def _head_name(self) -> str:
        return self.embedding if self.config.tied_head else self.layout.head

    def _table(self, name: str) -> FileMatrix:
        size = self.config.hidden_size
        return FileMatrix((self._part(name, (self.config.vocab_size, size)),), size, self.dtype, keeps=True)

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
        names = {role: self.prefix + self.layout.layer[role].format(i=index) for role in parts}
        matrices = [
            self._part(names[role], (outputs, inputs), self.layout.transposed, self.layout.convert.get(role))
            for role, outputs in parts.items()
        ]
        bias = None
        if has_bias:
            biases = [
                self._convert(role, self.fetch(f"{names[role]}.bias", (outputs,)).float())
                for role, outputs in parts.items()
            ]
            bias = stacked(biases)
        bits = max(self._stored_bits(name) for name in names.values())
        return LinearWeights(FileMatrix(tuple(matrices), inputs, self.dtype), bias, bits)

    def _part(self, name: str, shape: Shape, transposed: bool = False, convert: Convert | None = None) -> MatrixPart:
        """A stored matrix of canonical shape [out, in], which the file may hold as [in, out]."""
        name = f"{name}.weight"
        outputs, inputs = shape
        as_stored = (inputs, outputs) if transposed else shape

        def read() -> Tensor:
            tensor = self.fetch(name, as_stored).to(self.dtype)
            weight = tensor.T if transposed else tensor
            return weight if convert is None else convert(weight, self.config)

        if self.source is None:
            self.fetch(name, as_stored)
            return MatrixPart(name, outputs, read)
        stored = self.source.stored(name)
        require_weights(name, stored, as_stored)
        order = None if convert is None else self._order_of_rows(convert, outputs)
        return MatrixPart(name, outputs, read, None if transposed else stored, order)

    def _order_of_rows(self, convert: Convert, rows: int) -> NDArray[np.int32]:
        """[rows] where a conversion takes each row from: conversions of matrices move rows, and do nothing else."""
        if (convert, rows) not in self.orders:
            counted = torch.arange(2 * rows, dtype=torch.float64).reshape(rows, 2)
            moved = convert(counted, self.config)
            order = (moved[:, 0] / 2).to(torch.int64)
            if not torch.equal(counted[order], moved):
                raise TypeError(f"matrices of family {self.config.family} are converted in more than their rows")
            self.orders[convert, rows] = order.numpy().astype(np.int32)
        return self.orders[convert, rows]

    def _stored_bits(self, name: str) -> float:
        return 0.0 if self.source is None else self.source.stored_bits(f"{name}.weight")

    def _norm(self, name: str, role: str, size: int) -> NormWeights:
        name = self.prefix + name
        weight = self._convert(role, self.fetch(f"{name}.weight", (size,)).float())
        bias = self.fetch(f"{name}.bias", (size,)).float() if self.config.norm == "layer" else None
        return NormWeights(weight, bias)

    def _convert(self, role: str, tensor: Tensor) -> Tensor:
        convert = self.layout.convert.get(role)
        return convert(tensor, self.config) if convert is not None else tensor


def require_weights(name: str, stored: StoredTensor, shape: Shape) -> None:
    if stored.shape != shape or not stored.holds_weights:
        raise CheckpointError(
            f"tensor {name!r} holds {stored.type} of shape {list(stored.shape)} instead of floating-point "
            f"numbers of shape {list(shape)}; use an unquantised or a GGUF model."
        )


def stacked(tensors: list[Tensor]) -> Tensor:
    first, *others = tensors
    if first.is_meta:
        # Concatenating shapes alone would import all of torch's compiler, which takes seconds.
        return first.new_empty(sum(map(len, tensors)), *first.shape[1:])
    return torch.cat(tensors) if others else first.contiguous()
