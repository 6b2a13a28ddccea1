"""Passes computed with PyTorch: the reference, and the path for machines without a native one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.adapters import TorchAdapter, adapting
from headstart.backends.torch.attention import AttentionLayout
from headstart.backends.torch.decoder import Decoder, called_experts
from headstart.backends.torch.device import avoid_attention_plans, finish
from headstart.backends.torch.few_bit_rows import kept_row
from headstart.backends.torch.key_reader import TorchKeyReader
from headstart.backends.torch.kit import TorchKit
from headstart.backends.torch.mixers import cache_row, sights_of, state_shapes
from headstart.backends.torch.recorded_pass import RecordedPasses, can_record
from headstart.backends.torch.recorder import Recorder
from headstart.backends.torch.states import LayerStore, StateLayout
from headstart.common.enumerations import CacheType
from headstart.errors import ConfigError
from headstart.models.adapters import AdapterWeights
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights
from headstart.passes.backend import BackendKit
from headstart.passes.batch import (
    FINAL_TAP,
    IntArray,
    KVStorage,
    PassBatch,
    PassOutput,
    RowInputs,
    TapStates,
    safe_steps,
    stream_taps,
)

NAMES = {torch.float32: "torch-fp32", torch.bfloat16: "torch-bf16"}


class TorchStorage:
    """What tokens keep, paged: ``pages`` [layer, slot, *``cache_row``] (in fewer bits, as ``kept_row`` says) of the
    layers that keep keys and values, one for each shape of row, slots block by block; and the states of the others,
    with one slot more than there are, which holds zeros: that of an empty text."""

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        num_states: int = 0,
        cache_type: CacheType = CacheType.AUTO,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_states = num_states
        keeping = [layer for layer in config.layers if layer.attends and layer.reads is None]
        counts = Counter(cache_row(config, layer) for layer in keeping)
        slots = num_blocks * block_size
        by_row = {}
        for row, count in counts.items():
            shape, kept = kept_row(row, dtype, cache_type)
            by_row[row] = torch.zeros((count, slots, *shape), dtype=kept, device=device)
        self.pages = list(by_row.values())
        left = {row: iter(pages) for row, pages in by_row.items()}
        self.layers: list[LayerStore] = []
        """What each layer keeps, or reads."""
        self.recorded: RecordedPasses | None = None
        """Passes over it that are replayed; None: all of them run anew."""
        for layer in config.layers:
            if not layer.attends:
                pages = torch.zeros(0, dtype=dtype, device=device)
            elif layer.reads is not None:
                pages = self.layers[layer.reads].pages
            else:
                pages = next(left[cache_row(config, layer)])
            states = [
                torch.zeros((num_states + 1, *size), dtype=of_state, device=device)
                for size, of_state in state_shapes(config, layer, dtype)
            ]
            self.layers.append(LayerStore(pages, states))

        self.layout = f"torch {torch.__version__} {dtype} {device.type}"
        self.block_nbytes = sum(part.nbytes for part in self._parts(0, None))
        self.state_nbytes = sum(part.nbytes for part in self._parts(0, 0)) - self.block_nbytes

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (*self.pages, *(state for layer in self.layers for state in layer.states)))

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots pairwise, in order (see ``KVStorage.move``)."""
        for sources, targets in safe_steps(source, target):
            self._copy(sources, targets)

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy whole blocks pairwise."""
        within = np.arange(self.block_size)
        sources = np.asarray(source, dtype=np.int64)[:, None] * self.block_size + within
        targets = np.asarray(target, dtype=np.int64)[:, None] * self.block_size + within
        self._copy(sources.ravel(), targets.ravel())

    def read_block(self, block: int, slot: int | None = None) -> bytes:
        """See ``PortableStorage``."""
        parts = [part.contiguous().view(-1).view(torch.uint8) for part in self._parts(block, slot)]
        return b"".join(part.numpy(force=True).tobytes() for part in parts)

    @torch.inference_mode()
    def write_block(self, block: int, content: bytes, slot: int | None = None) -> None:
        """See ``PortableStorage``."""
        first = 0
        for part in self._parts(block, slot):
            taken = torch.frombuffer(bytearray(content[first : first + part.nbytes]), dtype=part.dtype)
            part.copy_(taken.view(part.shape))
            first += part.nbytes

    def _parts(self, block: int, slot: int | None) -> list[Tensor]:
        first = block * self.block_size
        states = [state for layer in self.layers for state in layer.states] if slot is not None else []
        return [pages[:, first : first + self.block_size] for pages in self.pages] + [each[slot] for each in states]

    @torch.inference_mode()
    def _copy(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        for pages in self.pages:
            sources, targets = (torch.from_numpy(slots).to(pages.device) for slots in (source, target))
            pages.index_copy_(1, targets, pages.index_select(1, sources))


class TorchBackend:
    """A ``Backend`` of plain torch operations in float32 or bfloat16.

    Norms and softmax are float32 in both; logits are accumulated in float32 and, in bfloat16, rounded to it once.
    Weights that are already in ``dtype`` on ``device`` are shared with ``weights`` where they are used as they
    are (the embedding), else repacked.
    """

    exact_rows = False
    opens_layers = True
    cache_types = (CacheType.Q8_0, CacheType.FP8)

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        kit: BackendKit | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """``kit``: what runs beside the passes; None: PyTorch, on the same device. ``recorder``: of the device, records
        what can be; None: everything is run anew."""
        self.config = config
        self.dtype = dtype
        self.device = torch.device(device)
        avoid_attention_plans(self.device)
        # From an accelerator, tokens come faster than logits.
        self.finds_best = self.device.type != "cpu"
        self.kit: BackendKit = kit or TorchKit(self.device, recorder)
        self.name = NAMES.get(dtype, f"torch-{dtype}".replace("torch.", ""))
        self._recorder = recorder if can_record(config) else None
        self.unrecorded = 0 if self._recorder is None else 2
        with torch.inference_mode():
            self.decoder = Decoder(config, weights, dtype, self.device)

    @property
    def nbytes(self) -> int:
        return self.decoder.nbytes

    @property
    def records(self) -> bool:
        """Whether passes are recorded and replayed."""
        return self._recorder is not None

    def allocate_cache(
        self, num_blocks: int, block_size: int, num_states: int = 0, cache_type: CacheType = CacheType.AUTO
    ) -> KVStorage:
        storage = TorchStorage(self.config, num_blocks, block_size, self.dtype, self.device, num_states, cache_type)
        if self._recorder is not None:
            storage.recorded = RecordedPasses(self.decoder, storage.layers, block_size, self._recorder)
        return storage

    @torch.inference_mode()
    def forward(self, batch: PassBatch, storage: KVStorage) -> PassOutput:
        """Run one pass.

        Raises:
            TypeError: the storage is another backend's.
            ValueError: a tap lies beyond the layers that run.
        """
        if not isinstance(storage, TorchStorage):
            raise TypeError(f"storage is a {type(storage).__name__}; allocate it with this backend")
        decoder, config = self.decoder, self.config
        depth = config.num_layers if batch.num_layers is None else batch.num_layers
        streams = () if config.residual.hyper is None else stream_taps(config.residual.hyper.count)
        beyond = [tap for tap in batch.taps if tap not in (FINAL_TAP, *streams) and not 0 <= tap <= depth]
        if not 0 < depth <= config.num_layers or beyond:
            raise ValueError(f"taps {list(batch.taps)} and num_layers {depth} do not fit {config.num_layers} layers")

        if storage.recorded is not None and batch.adapters is None:
            output = storage.recorded.forward(batch, depth)
            if output is not None:
                finish(self.device)
                return output
        layers = decoder.layers[:depth]
        layout = AttentionLayout(
            batch,
            storage.block_size,
            sights_of(config, config.layers[:depth]),
            self.dtype,
            self.device,
            config.attention.alibi,
            with_distances=config.latent is not None and config.latent.pooled,
        )
        positions = self._tensor(batch.positions)
        states = None
        if config.keeps_states:
            states = StateLayout(batch, storage.num_states, self.device)
        tokens = self._tensor(batch.tokens)
        shared = decoder.at(positions, layout, states, tokens, layout.windows)
        hidden = decoder.embed(tokens, positions, self._inputs(batch.inputs))
        inputs = decoder.inputs_of_layers(tokens, hidden)
        rows, best_rows = self._tensor(batch.logit_rows), self._tensor(batch.best_rows)
        with adapting(layers, batch, self.device):
            shown = decoder.run(hidden, storage.layers[:depth], shared, batch.taps, rows, best_rows, inputs)
        best = shown.best.numpy(force=True) if len(batch.best_rows) else None
        experts = None if config.experts is None else called_experts(layers)
        finish(self.device)
        taps = TapStates.of({tap: shown.states[tap] for tap in batch.taps})
        return PassOutput(shown.logits, taps, best, experts)

    @torch.inference_mode()
    def compiled_adapter(self, weights: AdapterWeights) -> TorchAdapter:
        """What passes take for an adapter of this model. Any thread may ask, while they run."""
        return TorchAdapter(weights, self.device)

    @torch.inference_mode()
    def embedded(self, tokens: IntArray) -> Tensor:
        """See ``LendsKeys``."""
        ids = self._tensor(tokens)
        return self.decoder.embed(ids, torch.zeros_like(ids)).float()

    def key_reader(self, config: ModelConfig, weights: DecoderWeights, precision: str) -> TorchKeyReader:
        """See ``LendsKeys``.

        Raises:
            ConfigError: the precision is not the one that keys and values have.
        """
        own = self.name.removeprefix("torch-")
        if precision not in ("auto", own):
            raise ConfigError(
                f"precision is {precision!r}, but what reads the target's keys and values is computed in {own}, as they"
                " are; leave it out."
            )
        return TorchKeyReader(config, weights, self.dtype, self.device)

    def _inputs(self, inputs: RowInputs | None) -> tuple[Tensor, Tensor] | None:
        if inputs is None:
            return None
        return self._tensor(inputs.rows).long(), inputs.values.to(self.device, self.dtype)

    def _tensor(self, values: IntArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
