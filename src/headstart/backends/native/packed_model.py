"""A decoder's weights in the library: from the cache of packed ones, or packed matrix by matrix from their file."""

from __future__ import annotations

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Thread

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.native.formats import (
    BF16,
    EIGHT,
    FOUR,
    KINDS,
    OWN,
    all_in_bf16,
    blocks_forms,
    computed_in,
    nearest_forms,
    types_of,
)
from headstart.backends.native.library import Layer, Library
from headstart.backends.native.matrices import DecoderParts, experts_of, experts_part, head_row, linears_of
from headstart.backends.native.packed_cache import packed_cache
from headstart.backends.native.packing import (
    COPIED,
    EMBEDDING_NORM,
    FEATURE_NORM,
    FINAL_NORM,
    FUSE,
    INPUTS_NORM,
    INPUTS_PROJECTION,
    NORMS,
    OUTPUT_HEAD,
    STREAM_LINEARS,
    THE_HEAD,
    Packer,
    address,
    expect,
    give_codebooks,
    hyper_constants,
    new_model,
)
from headstart.backends.native.precision import Precision, library_number
from headstart.backends.native.shapes import begin_with_fusion, layers_of, shape_of
from headstart.common.memory import readable, require_room
from headstart.models.config import ModelConfig
from headstart.models.files import WeightsIdentity
from headstart.models.layers.positions import counted_sinusoids
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.models.stored import Matrix
from headstart.models.weights import AttentionWeights, LayerWeights

_BEHIND = 1 << 30
"""Bytes of packed weights from which on they are written while the model is in use already."""
_IN_BLOCKS = ("int4", "int4-fast", "blocks")
_LARGE_TYPES = {"Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0", "F32", "F16", "BF16"}
"""More than 5 bits a weight."""
_WHILE_PACKING = 64 << 20
"""Bytes for what packing needs beside the weights: rows in floats, the process's own growth."""


@dataclass(frozen=True)
class Rounding:
    """How far weights are from the file's: the root of the sum of squares, relative to the weights' own."""

    packed: float
    in_bf16: float
    """What it would be."""


class PackedModel:
    """A model of the library with all its weights.

    Args:
        owner: with it the model is destroyed.
        weights: read matrix by matrix, unless the cache has them; nothing of them is kept. Of a decoder whose rows read
            states beside their tokens, the embedding is left to the owner.
        small_head: see ``NativeBackend``.

    Raises:
        ConfigError: memory is short.
    """

    def __init__(
        self,
        owner: object,
        library: Library,
        config: ModelConfig,
        weights: DecoderParts,
        precision: Precision,
        threads: int,
        small_head: bool = False,
    ) -> None:
        self._library = library
        self._config = config
        self._saving: Thread | None = None
        """Writes the weights to disk, and reads them from the model until it is done."""
        asked = precision
        if precision == "nearest":
            self._forms = nearest_forms(weights, library.multiplies_bytes)
            precision = "bf16" if all_in_bf16(self._forms) else precision
        else:
            self._forms = blocks_forms(weights, precision == "blocks")
        head = head_row(weights.layers)
        small_head = small_head and self._has_large_head(weights, precision)
        if small_head:
            self._forms[head] = FOUR
        self.shape = shape_of(config, precision, threads)
        """For the library."""
        self._layers = layers_of(config)
        if weights.fusion is not None:
            begin_with_fusion(self.shape, weights.fusion, weights.head.matrix.shape[0])
        self.name = self._name(weights, precision)
        self._require_room(weights)
        self.handle = self._filled(weights)
        worse = self._worse_than_bf16() & (np.arange(len(self._forms)) != (head if small_head else -1))
        if precision == "nearest" and worse.any():
            # Nothing that a quantiser writes comes to this; the law holds for what none would, too.
            self._forms[worse] = BF16
            self.name = self._name(weights, precision)
            _destroy(library, self.handle, self._saving)
            self._require_room(weights)
            self.handle = self._filled(weights)
        weakref.finalize(owner, _destroy, library, self.handle, self._saving)
        self.rounding = self._rounding()
        self.kept = computed_in(weights, self._forms) if asked in ("nearest", "blocks") else ""
        """What the file's types are computed in, a sentence."""

    def _has_large_head(self, weights: DecoderParts, precision: Precision) -> bool:
        """Whether an output head would have more than levels of 4 bits in a precision that knows these."""
        if weights.fusion is not None:
            kept = set(types_of(weights.head.matrix))
            return precision in (*_IN_BLOCKS, "nearest") and bool(kept & _LARGE_TYPES)
        return precision in _IN_BLOCKS and bool(self._forms[head_row(weights.layers), 0] == EIGHT)

    def finish_saving(self) -> None:
        """Wait until nobody reads the weights any more to write them to disk."""
        if self._saving is not None:
            self._saving.join()

    def _name(self, weights: DecoderParts, precision: Precision) -> str:
        """What ``nearest`` comes to."""
        if precision != "nearest":
            return precision
        for name, as_stored in (("int4", False), ("blocks", True)):
            if np.array_equal(self._forms, blocks_forms(weights, as_stored)):
                return name
        return "mixed"

    def _require_room(self, weights: DecoderParts) -> None:
        planned = np.zeros(3, np.int64)
        layers = (Layer * len(self._layers))(*self._layers)
        self._library.packed_bytes(ctypes.byref(self.shape), layers, address(self._forms), address(planned))
        matrices, head, screen = (int(each) for each in planned)
        numbers = sum(each.matrix.shape[0] * each.matrix.shape[1] for each in weights.linears)
        numbers -= weights.head.matrix.shape[0] * weights.head.matrix.shape[1]
        self.layer_bits = 8 * matrices / max(numbers, 1)
        """Bits that a weight of the layers takes."""
        in_full = self.shape.precision == library_number("fp32")
        table = 0 if self._keeps_no_table(weights) else _table_bytes(weights.table, in_full)
        if weights.positions is not None:
            table += 4 * weights.positions.numel()
        elif self._config.embedding.positions == "sinusoid":
            table += 4 * self._config.max_positions * self._config.hidden_size
        loading = _WHILE_PACKING + max(_copied_bytes(each.matrix) for each in weights.linears)
        self._require({"layers": matrices, "output head": head + screen, "embedding": table, "packing": loading})

    def _require(self, parts: dict[str, int]) -> None:
        """Bytes of what is to be kept."""
        config = self._config
        require_room(
            sum(parts.values()),
            f"{config.name or config.family} in {self.name} "
            f"({', '.join(f'{name} {readable(size)}' for name, size in parts.items())})",
            "choose a smaller model, or fewer bits (precision int4, or a smaller file)",
        )

    def _shares_head(self, weights: DecoderParts) -> bool:
        """Whether the embedding's rows are to be those of the head, which is kept as the file has it."""
        head = self._forms[head_row(weights.layers), 0]
        in_eight = head == EIGHT and types_of(weights.head.matrix) == ["Q8_0"]
        counts = self.shape.precision in (library_number("int4"), library_number("int4-fast"))  # others pack all alike
        return counts and weights.table is weights.head.matrix and bool(head >= OWN or in_eight)

    def _keeps_no_table(self, weights: DecoderParts) -> bool:
        """Whether the embedding is the head's rows, or its owner's own affair."""
        return weights.fusion is not None or self._shares_head(weights)

    def _filled(self, weights: DecoderParts) -> int:
        """A model with its weights, from the cache if it has them."""
        library, identity = self._library, weights.identity
        give_codebooks(library, weights.table)  # a kept table's rows are read with them, restored ones too
        kept = None if identity is None else packed_cache()
        if kept is None or identity is None:
            return self._new(partial(self._pack, weights=weights))
        key = self._key(identity)
        found = self._new(lambda handle: kept.load(key, partial(_transfer, library.restore, handle)))
        if found:
            return found
        handle = self._new(partial(self._pack, weights=weights))
        if identity.holds():
            size = int(library.bytes(handle))
            store = partial(kept.store, key, size, partial(_transfer, library.save, handle))
            if size < _BEHIND:
                store()
            else:  # the first answer need not wait for the disk; a process that ends does
                self._saving = Thread(target=store, name="headstart-packed-weights")
                self._saving.start()
        return handle

    def _new(self, fill: Callable[[int], bool]) -> int:
        """A model; 0 where ``fill`` could not fill it."""
        name = f"{self._config.name} in {self.name}"
        handle = new_model(self._library, self.shape, self._layers, name, self._forms)
        filled = False
        try:
            filled = fill(handle)
        finally:
            if not filled:
                self._library.destroy(handle)
        return handle if filled else 0

    @torch.inference_mode()
    def _pack(self, handle: int, weights: DecoderParts) -> bool:
        config, library, fusion = self._config, self._library, weights.fusion
        packer = Packer(library, handle, config.norms.offset)
        packer.norm(-1, FINAL_NORM, weights.final_norm)
        packer.norm(-1, EMBEDDING_NORM, weights.embedding_norm if fusion is None else fusion.embedding_norm)
        packer.norm(-1, FEATURE_NORM, None if fusion is None else fusion.hidden_norm)
        packer.norm(-1, INPUTS_NORM, None if weights.layer_inputs is None else weights.layer_inputs.norm)
        for which, constant in enumerate(() if weights.hyper_end is None else hyper_constants(weights.hyper_end)):
            packer.constant(-1, which, constant)
        after_sums = config.encoder is not None and not config.encoder.normed_before
        for index, parts in enumerate(weights.layers):
            packer.norms(index, _with_norms_at_work(config, index, parts), after_sums, config.norms.shared)
            packer.constants(index, parts)
            if config.attention.value_norm:
                blank = torch.ones(config.head_dim_of(config.layers[index])) - config.norms.offset
                packer.norm(index, NORMS.index("value_norm"), NormWeights(blank))
            if (experts := experts_part(parts)) is not None:
                packer.router(index, experts)
            if (sinks := getattr(parts.mixer, "sinks", None)) is not None:
                packer.sinks(index, sinks)
        matrices = list(_placed(packer, weights))
        for (linear, pack), following in zip(matrices, [*matrices[1:], None], strict=True):
            if following is not None:
                expect(following[0].matrix)
            pack(linear)
        if fusion is not None:
            return True
        shares = self._shares_head(weights)
        if shares and self._losses(handle)[head_row(weights.layers), 0] != 0:
            shares = False  # its copy was not counted
            self._require({"embedding beside the output head": _table_bytes(weights.table, in_full=False)})
        packer.embedding(weights.table, _positions(config, weights), THE_HEAD if shares else COPIED)
        return True

    def _losses(self, handle: int) -> NDArray[np.float64]:
        losses = np.zeros((len(self._forms), 3))
        self._library.losses(handle, address(losses))
        return losses

    def _worse_than_bf16(self) -> NDArray[np.bool_]:
        lost, by_bf16, squares = self._losses(self.handle).T
        return np.asarray(lost > by_bf16 + 1e-10 * squares)

    def _rounding(self) -> Rounding:
        lost, by_bf16, squares = self._losses(self.handle).sum(0)
        return Rounding(0.0, 0.0) if squares == 0 else Rounding((lost / squares) ** 0.5, (by_bf16 / squares) ** 0.5)

    def _key(self, identity: WeightsIdentity) -> str:
        """For everything that packed weights depend on."""
        key = hashlib.sha256()
        for part in (str(identity), self._library.file_name, repr(self._config), _sources()):
            key.update(part.encode() + b"\0")
        key.update(b"".join(map(bytes, (self.shape, *self._layers))) + self._forms.tobytes())
        return key.hexdigest()


def _positions(config: ModelConfig, weights: DecoderParts) -> Tensor | None:
    """float32 [position, hidden] what is added to embeddings."""
    if config.embedding.positions == "sinusoid":
        return counted_sinusoids(torch.arange(config.max_positions), config.hidden_size)
    return weights.positions


def _placed(packer: Packer, weights: DecoderParts) -> Iterator[tuple[LinearWeights, Callable[[LinearWeights], None]]]:
    """Matrices but the routers', as files mostly have them in order, and what packs each."""
    for index, layer in enumerate(weights.layers):
        for which, linear in enumerate(linears_of(layer)):
            if linear is not None:
                yield linear, partial(packer.linear, index, which)
        for number, expert in enumerate(experts_of(layer)):
            for which, linear in enumerate((expert.up, expert.down)):
                yield linear, partial(packer.expert, index, number, which)
    yield weights.head, partial(packer.linear, -1, OUTPUT_HEAD)
    if weights.layer_inputs is not None:
        yield weights.layer_inputs.projection, partial(packer.linear, -1, INPUTS_PROJECTION)
    if weights.fusion is not None:
        yield weights.fusion.projection, partial(packer.linear, -1, FUSE)
    if weights.streams is not None:
        for which, linear in enumerate((*weights.streams.spread, *weights.streams.merge), STREAM_LINEARS):
            yield linear, partial(packer.linear, -1, which)


def _destroy(library: Library, handle: int, saving: Thread | None) -> None:
    if saving is not None:
        saving.join()
    library.destroy(handle)


def _transfer(function: Callable[[int, int, int], bytes | None], handle: int, file: int, start: int) -> str | None:
    problem = function(handle, file, start)
    return None if problem is None else problem.decode()


@cache
def _sources() -> str:
    """Of what puts weights in order before the library packs them."""
    here = Path(__file__).parent
    models = here.parents[1] / "models"
    digest = hashlib.sha256()
    rooms = (here, models, models / "families", models / "quantised")
    for path in sorted(path for room in rooms for path in room.iterdir()):
        if path.suffix != ".py":
            continue
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _table_bytes(table: Tensor | Matrix, in_full: bool) -> int:
    """Of the embedding as it is kept."""
    outputs, inputs = table.shape
    if isinstance(table, Tensor):
        return outputs * inputs * (table.itemsize if in_full else 2)
    total = 0
    for part in table.parts:
        stored = part.stored
        in_file = stored is not None and stored.type in KINDS
        if stored is not None and in_file and stored.make is None and (stored.in_blocks or in_full):
            total += len(stored.data)
        else:
            total += part.rows * inputs * (4 if in_full else 2)
    return total


def _copied_bytes(matrix: Tensor | Matrix) -> int:
    """Of what is read in floats as a whole, in no form that the library knows, or put into another order first."""
    if isinstance(matrix, Tensor):
        return 0
    total = 0
    for part in matrix.parts:
        stored = part.stored
        if stored is None or stored.type not in KINDS or stored.make is not None:
            total += 2 * 4 * part.rows * matrix.shape[1]
    return total


def _with_norms_at_work(config: ModelConfig, index: int, parts: LayerWeights) -> LayerWeights:
    """A layer without norms of heads where it does not use them."""
    norms, mixer = config.attention.qk_norm, parts.mixer
    if norms is None or norms.everywhere or config.layers[index].rope is not None:
        return parts
    if not isinstance(mixer, AttentionWeights):
        return parts
    return replace(parts, mixer=replace(mixer, q_norm=None, k_norm=None))
