"""A ``Backend`` whose pass is one call of the native library."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import accumulate
from typing import cast

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.adapters import NativeAdapter, handles_of
from headstart.backends.native.key_reader import NativeKeyReader
from headstart.backends.native.kit import NativeKit
from headstart.backends.native.library import Pass
from headstart.backends.native.loader import load_library
from headstart.backends.native.matrices import DecoderParts
from headstart.backends.native.own_weights import NativeOwnWeights
from headstart.backends.native.packed_model import PackedModel
from headstart.backends.native.packing import RopeTables, RowTable, address, as_float32, as_int32, as_one
from headstart.backends.native.precision import Precision
from headstart.backends.native.storage import PAGE_KEYS, NativeStorage
from headstart.backends.native.stretch import NativeStretches
from headstart.backends.native.supported import supports
from headstart.backends.native.team import team_size
from headstart.common.enumerations import CacheType
from headstart.errors import ConfigError
from headstart.models.adapters import AdapterWeights
from headstart.models.config import ModelConfig
from headstart.models.weights import DecoderWeights
from headstart.passes.backend import BackendKit
from headstart.passes.batch import NO_STATES, IntArray, KVStorage, PassBatch, PassOutput, RowInputs, TapStates


class NativeBackend:
    """A decoder packed for this machine's processor.

    Rows are computed to the same bits in every pass: alone or with others, chunked or not, as a chain or in a tree,
    with any number of threads. Hidden rows (taps) are float32. One pass at a time, from one thread.

    Args:
        config: the model; ``supports(config)`` must be None.
        weights: read while packing, not kept.
        precision: how weights and activations are held.
        threads: team size, None for ``backends.native.team``'s.
        isa: instruction set to use instead of the fastest (see ``load_library``).
        small_head: the output head, too, has levels of 4 bits where a precision in blocks would give it 8; for what
            only guesses.
        ahead: positions that rows stand ahead of where their sequence puts them; of what reads another one's keys.

    Raises:
        ConfigError: the model is not supported, or there is no native path on this machine.
    """

    exact_rows = True
    finds_best = True
    opens_layers = True
    cache_types = (CacheType.Q8_0,)

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderParts,
        precision: Precision = "bf16",
        threads: int | None = None,
        isa: str | None = None,
        small_head: bool = False,
        ahead: int = 0,
    ) -> None:
        reason = supports(config)
        if reason is not None:
            raise ConfigError(f"the native pass cannot run {config.name or config.family}: {reason}; use PyTorch")
        library = load_library(isa)
        if library is None:
            raise ConfigError("there is no native path on this machine; use PyTorch")
        self.config = config
        self.threads = threads or team_size()
        self._library = library
        self.kit: BackendKit = NativeKit(library, precision)
        packed = PackedModel(self, library, config, weights, precision, self.threads, small_head)
        self._packed = packed
        self.name = f"native-{library.isa}-{packed.name}"
        self.handle = packed.handle
        self.rounding = packed.rounding
        self.kept = packed.kept
        self.layer_bits = packed.layer_bits
        self.multiplies_bytes = library.multiplies_bytes
        """Whether the processor has a dot product of bytes."""
        self.keeps_floats = precision == "fp32"
        """Whether keys and values are float32, not bf16."""
        self._host: NativeBackend | None = None
        if config.attention.alibi is not None:
            slopes = torch.tensor(config.attention.alibi.slopes)
            library.set_alibi(
                self.handle, slopes.data_ptr(), config.attention.alibi.scale, config.attention.alibi.coarse
            )
        self._ropes = RopeTables(library, self.handle, config.ropes, weights.rope_factors, ahead)
        self._inputs_table: RowTable | None = None
        """Borrowed by the library."""
        if weights.layer_inputs is not None:
            self._inputs_table = RowTable(library, as_one(weights.layer_inputs.whole))
            library.set_inputs_table(self.handle, self._inputs_table.rows)
        self._no_logits = torch.empty(0, config.vocab_size)
        self.stretches = NativeStretches(library, self.handle, self._ropes)

    def take_cache_of(self, host: NativeBackend) -> None:
        """Have passes run over caches that ``host`` allocated, too. Layers keep what its first ones do. Its embedding
        serves in place of this one's own.

        Raises:
            ConfigError: they keep something else.
        """
        own, others = (_kept(each) for each in (self, host))
        if own != others[: len(own)]:
            raise ConfigError(
                f"layers of {self.name} keep other keys and values than those of {host.name}, whose cache they cannot "
                "share; use a draft model with a cache of its own."
            )
        self._host = host
        self.stretches.host = host.handle
        self._packed.finish_saving()  # of what is given back
        self._library.share_embedding(self.handle, host.handle)

    def embedded(self, tokens: IntArray) -> Tensor:
        """See ``LendsKeys``."""
        nothing = RowInputs(np.empty(0, np.int32), torch.empty(0, self.config.hidden_size))
        return self._first_inputs(tokens, np.zeros(len(tokens), np.int32), nothing)

    def key_reader(self, config: ModelConfig, weights: DecoderWeights, precision: str) -> NativeKeyReader:
        """See ``LendsKeys``."""
        asked = ("fp32" if self.keeps_floats else "int8") if precision == "auto" else precision
        if (asked == "fp32") != self.keeps_floats:
            raise ConfigError(
                f"precision is {precision!r}, but the target's keys and values are in "
                f"{'float32' if self.keeps_floats else 'bf16'}; leave it out."
            )
        reader = NativeBackend(config, weights, cast(Precision, asked), self.threads, self._library.isa, ahead=1)
        reader._host = self
        return NativeKeyReader(reader)

    def guesser(self, depth: int) -> NativeOwnWeights:
        """Guesses for the stretches of the model whose cache this one takes, in chains of ``depth`` tokens at most."""
        return NativeOwnWeights(self._library, self.handle, self._ropes, depth)

    @property
    def nbytes(self) -> int:
        return int(self._library.bytes(self.handle))

    def compiled_adapter(self, weights: AdapterWeights) -> NativeAdapter:
        """What passes take for an adapter of this model. Any thread may ask, while they run."""
        return NativeAdapter(self._library, self, self.handle, weights)

    def allocate_cache(
        self, num_blocks: int, block_size: int = PAGE_KEYS, num_states: int = 0, cache_type: CacheType = CacheType.AUTO
    ) -> KVStorage:
        """Zero-filled storage.

        Raises:
            ConfigError: ``block_size`` is no multiple of 32, or memory is short.
        """
        in_bytes = cache_type is CacheType.Q8_0
        return NativeStorage(self._library, self.handle, num_blocks, block_size, num_states, in_bytes)

    def read_seconds(self) -> float:
        """Seconds that one read of all weights took just now: the floor of a pass."""
        return float(self._library.read_seconds(self.handle))

    def forward(self, batch: PassBatch, storage: KVStorage) -> PassOutput:
        """Run one pass.

        Raises:
            TypeError: the storage is another backend's.
            ValueError: the batch's tables contradict each other or the cache.
        """
        own = self._own(storage)
        rows, wanted = len(batch.tokens), len(batch.logit_rows)
        depth = self.config.num_layers if batch.num_layers is None else batch.num_layers
        _check_lengths(batch)
        tables = {
            "tokens": batch.tokens,
            "parents": batch.parents,
            "row_starts": batch.row_starts,
            "cached_lengths": batch.cached_lengths,
            "block_tables": batch.block_tables,
            "logit_rows": batch.logit_rows,
            "best_rows": batch.best_rows,
            "tap_layers": _tap_table(batch.taps),
        }
        if batch.memory_lengths is not None and batch.memory_tables is not None:
            tables |= {"memory_lengths": batch.memory_lengths, "memory_tables": batch.memory_tables}
        if batch.states_before is not None and batch.states_after is not None:
            tables |= {"states_before": batch.states_before, "states_after": batch.states_after}
        # One block of memory for all of them: their weights have swept the caches, so that each call here costs.
        flat = as_int32(np.concatenate(list(tables.values()), axis=None))
        sizes = [table.size * flat.itemsize for table in tables.values()]
        places = dict(zip(tables, accumulate(sizes, initial=address(flat)), strict=False))
        # No row lies further on than all rows in a chain.
        self._ropes.reach(max(batch.cached_lengths.tolist(), default=0) + rows)
        logits = torch.empty(wanted, self.config.vocab_size) if wanted else self._no_logits
        best = np.empty(len(batch.best_rows), np.int32)
        hidden, taps = NO_STATES, None
        if batch.taps:
            hidden = TapStates(batch.taps, np.empty((len(batch.taps), rows, self.config.hidden_size), np.float32))
            first, size = address(hidden.states), hidden.states.strides[0]
            taps = (ctypes.c_void_p * len(batch.taps))(*range(first, first + size * len(batch.taps), size))
        adapters = handles_of(batch.adapters)
        experts = ctypes.c_double()
        inputs = None if batch.inputs is None else self._first_inputs(batch.tokens, batch.positions, batch.inputs)
        arguments = Pass(
            **places,
            rows=rows,
            sequences=batch.num_sequences,
            blocks_per_sequence=batch.block_tables.shape[1],
            pages_per_block=own.pages_per_block,
            wanted=wanted,
            best=len(best),
            layers=depth,
            taps=len(batch.taps),
            inputs=None if inputs is None else inputs.data_ptr(),
            logits=logits.data_ptr() if wanted else None,
            best_ids=address(best),
            tap_rows=taps,
            memory_blocks=0 if batch.memory_tables is None else batch.memory_tables.shape[1],
            experts=ctypes.addressof(experts),
            adapters=(ctypes.c_void_p * len(adapters))(*adapters) if adapters else None,
        )
        error = self._library.forward(self.handle, own.handle, ctypes.byref(arguments))
        if error is not None:
            raise ValueError(f"the pass cannot run: {error.decode()}")
        return PassOutput(logits, hidden, best, experts.value or None)

    def _own(self, storage: KVStorage) -> NativeStorage:
        hosts = (self.handle, None if self._host is None else self._host.handle)
        if not isinstance(storage, NativeStorage) or storage.model not in hosts:
            raise TypeError(f"storage is a {type(storage).__name__} of another backend; allocate it with this one")
        return storage

    def _first_inputs(self, row_tokens: IntArray, row_positions: IntArray, given: RowInputs) -> Tensor:
        """float32 [row, hidden] what the first layer reads: the library takes all rows' inputs, or none."""
        wanted = (len(given.rows), self.config.hidden_size)
        if given.values.shape != wanted:
            raise ValueError(f"inputs are {tuple(given.values.shape)}; rows x hidden is {wanted}")
        tokens, positions, rows = (as_int32(each) for each in (row_tokens, row_positions, given.rows))
        values = as_float32(given.values)
        inputs = torch.empty(len(tokens), self.config.hidden_size)
        self._library.first_inputs(
            self.handle,
            address(tokens),
            address(positions),
            len(tokens),
            address(rows),
            len(rows),
            values.data_ptr(),
            inputs.data_ptr(),
        )
        return inputs


def _kept(backend: NativeBackend) -> list[object]:
    """[layer] what is kept of a token, and of a text."""
    config = backend.config
    states = (config.convolution, config.delta, config.mamba, config.mamba2, config.latent, config.compressed)
    sizes = [
        (config.kv_heads_of(layer), config.head_dim_of(layer), config.value_dim_of(layer)) for layer in config.layers
    ]
    return [
        (layer.mixer, layer.reads, layer.compression, size, states, backend.keeps_floats)
        for layer, size in zip(config.layers, sizes, strict=True)
    ]


@cache
def _tap_table(taps: tuple[int, ...]) -> IntArray:
    return np.array(taps, np.int32)


def _check_lengths(batch: PassBatch) -> None:
    """The library trusts lengths; everything else it checks itself."""
    rows, sequences = len(batch.tokens), len(batch.cached_lengths)
    if len(batch.parents) != rows:
        raise ValueError(f"parents do not have one entry for each of {rows} rows")
    if len(batch.row_starts) != sequences + 1 or len(batch.block_tables) != sequences:
        raise ValueError(f"row_starts and block_tables do not fit {sequences} sequences")
    memories = [each for each in (batch.memory_lengths, batch.memory_tables) if each is not None]
    if memories and [len(each) for each in memories] != [sequences] * 2:
        raise ValueError(f"memory_lengths and memory_tables do not fit {sequences} sequences")
    states = [each for each in (batch.states_before, batch.states_after) if each is not None]
    if states and [len(each) for each in states] != [sequences, rows]:
        raise ValueError(f"states_before and states_after do not fit {sequences} sequences and {rows} rows")
