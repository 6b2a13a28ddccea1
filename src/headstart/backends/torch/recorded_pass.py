"""Passes that are recorded, in shapes that come again: trees and single tokens of a few sequences, padded to a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.backends.torch.decoder import Decoder
from headstart.backends.torch.mixers import sights_of
from headstart.backends.torch.recorder import Recorder, Recordings, Run
from headstart.backends.torch.staging import Staging
from headstart.backends.torch.states import LayerStore
from headstart.backends.torch.static_layout import LayoutTables, StaticLayout, coarsely_padded, padded
from headstart.models.config import ModelConfig
from headstart.passes.batch import NO_STATES, IntArray, PassBatch, PassOutput, TapStates

MOST_ROWS = 256
"""Of a grid; where more are computed, the processor keeps up."""
_CHEAP_ROWS = 64
"""Up to these, a pass hardly takes longer than one of a single row."""
_PATH_BITS = 64
"""Rows of a sequence: one bit each in its rows' paths."""
_MOST_SEQUENCES = 64
_MOST_KEYS = 1 << 16
"""Of all sequences; where more are read, likewise."""
_FEWEST_KEYS = 128
_FEWEST_LOGITS = 16
"""Rows that there is room for at first."""


class PassShape(NamedTuple):
    """What two passes have in common that one recording serves."""

    sequences: int
    rows: int
    """Of each sequence."""
    keys: int
    """Of each sequence, those of its rows included."""
    wanted: int
    """Rows whose logits are shown."""
    best: int
    """Rows whose best token is."""
    taps: tuple[int, ...]
    depth: int
    """Layers that are run."""

    @classmethod
    def of(cls, batch: PassBatch, depth: int) -> PassShape | None:
        """That of the smallest grid that holds a pass; None: it is too large, or of another kind."""
        if batch.inputs is not None or batch.memory_lengths is not None:
            return None
        counts = np.diff(batch.row_starts)
        sequences, most = padded(batch.num_sequences), int(counts.max())
        rows = coarsely_padded(most)
        rows = rows if sequences * rows <= _CHEAP_ROWS else padded(most)
        keys = padded(int((batch.cached_lengths + counts).max()), _FEWEST_KEYS)
        if rows > _PATH_BITS or sequences > _MOST_SEQUENCES or sequences * rows > MOST_ROWS:
            return None
        if sequences * keys > _MOST_KEYS:
            return None
        wanted, best = (
            min(coarsely_padded(len(each)), sequences * rows) if len(each) else 0
            for each in (batch.logit_rows, batch.best_rows)
        )
        return cls(sequences, rows, keys, wanted, best, batch.taps, depth)


def can_record(config: ModelConfig) -> bool:
    """Whether passes of a model run without asking the device for numbers: experts are called by name, and how states
    are walked through depends on the rows."""
    return config.experts is None and not config.keeps_states and config.encoder is None


class RecordedPasses:
    """The recorded passes over one storage.

    Args:
        decoder: runs them.
        stores: [layer] of the storage.
        block_size: of the storage.
        recorder: records them.
    """

    def __init__(self, decoder: Decoder, stores: Sequence[LayerStore], block_size: int, recorder: Recorder) -> None:
        self._decoder, self._stores, self._block_size = decoder, stores, block_size
        self.recordings: Recordings[_RecordedPass] = Recordings(recorder)
        alibi = decoder.config.attention.alibi
        self._logits = torch.empty(0, decoder.config.vocab_size, device=recorder.device)
        """[row, vocab] what all recordings show: each of them is read before the next one is replayed."""
        self._alibi = None if alibi is None else (alibi, torch.tensor(alibi.slopes, device=recorder.device))

    def forward(self, batch: PassBatch, depth: int) -> PassOutput | None:
        """A pass of the first ``depth`` layers; None: it is to be computed otherwise."""
        shape = PassShape.of(batch, depth)
        if shape is None:
            return None
        if shape.wanted > len(self._logits):
            self._logits = self._logits.new_empty(max(shape.wanted, _FEWEST_LOGITS), self._logits.shape[1])
        self.recordings.of_memory(len(self._logits))
        recorded = self.recordings.of(shape, lambda: self._recorded(shape, batch))
        return None if recorded is None else recorded(batch)

    def _recorded(self, shape: PassShape, batch: PassBatch) -> _RecordedPass:
        """Of a shape; ``batch``: one that has it, which the first run computes."""
        recorder, size = self.recordings.recorder, self._block_size
        grid = (shape.sequences, shape.rows)
        staging = Staging(
            {
                "tokens": grid,
                "cached": (shape.sequences,),
                "counts": (shape.sequences,),
                "positions": grid,
                "paths": grid,
                "blocks": (shape.sequences, -(-shape.keys // size)),
                "wanted": (shape.wanted,),
                "best": (shape.best,),
                "places": (shape.sequences * shape.rows if shape.taps else 0,),
            },
            recorder.device,
        )
        fill(staging, shape, batch)
        staging.send()
        return _RecordedPass(shape, staging, recorder.record(lambda: self._run(shape, staging.device)))

    def _run(self, shape: PassShape, tables: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [wanted, vocab], best tokens [best], and states [tap, row of the pass, hidden]."""
        decoder, config = self._decoder, self._decoder.config
        stores = self._stores[: shape.depth]
        bits = torch.arange(shape.rows, device=self.recordings.recorder.device)
        sees = ((tables["paths"][:, :, None] >> bits) & 1).bool()
        layout = StaticLayout(
            LayoutTables(tables["cached"], tables["counts"], tables["positions"], sees, tables["blocks"]),
            shape.keys,
            self._block_size,
            sights_of(config, config.layers[: shape.depth]),
            decoder.dtype,
            self._alibi,
        )
        tokens, positions = tables["tokens"].flatten(), tables["positions"].flatten()
        hidden, shared = decoder.embed(tokens, positions), decoder.at(positions, layout)
        inputs = decoder.inputs_of_layers(tokens, hidden)
        shown = decoder.run(hidden, stores, shared, shape.taps, tables["wanted"], tables["best"], inputs)
        logits = self._logits[: shape.wanted]
        logits.copy_(shown.logits)
        if not shape.taps:
            return logits, shown.best, logits[:0]
        stacked = torch.stack([shown.states[tap] for tap in shape.taps]).float()
        return logits, shown.best, stacked.index_select(1, tables["places"])


class _RecordedPass:
    """One recording with the tables that it reads."""

    def __init__(self, shape: PassShape, staging: Staging, replay: Run) -> None:
        self._shape, self._staging, self._replay = shape, staging, replay

    def __call__(self, batch: PassBatch) -> PassOutput:
        self._staging.begin()
        fill(self._staging, self._shape, batch)
        self._staging.send()
        logits, best, states = self._replay()
        # The next replay writes to the same memory.
        tokens = best[: len(batch.best_rows)].to("cpu", copy=True).numpy() if len(batch.best_rows) else None
        shown = states[:, : batch.num_rows].to("cpu", copy=True).numpy() if batch.taps else NO_STATES.states
        return PassOutput(logits[: len(batch.logit_rows)].clone(), TapStates(batch.taps, shown), tokens)


def fill(staging: Staging, shape: PassShape, batch: PassBatch) -> None:
    """Write what a pass is told into the tables of its shape."""
    tables = staging.host
    members = np.minimum(np.arange(shape.sequences), batch.num_sequences - 1)
    counts = np.diff(batch.row_starts)
    starts, own = batch.row_starts[:-1], counts[members]
    rows = starts[members][:, None] + np.minimum(np.arange(shape.rows), own[:, None] - 1)
    tables["tokens"][:] = batch.tokens[rows]
    tables["positions"][:] = batch.positions[rows]
    tables["paths"][:] = _path_bits(batch.parents, np.repeat(starts, counts))[rows]
    tables["cached"][:], tables["counts"][:] = batch.cached_lengths[members], own
    blocks = batch.block_tables[members, : tables["blocks"].shape[1]]
    tables["blocks"][:, : blocks.shape[1]] = blocks
    # Where the grid has the rows of the pass.
    places = np.arange(batch.num_rows) + np.repeat(np.arange(batch.num_sequences) * shape.rows - starts, counts)
    _fill_padded(tables["wanted"], places[batch.logit_rows])
    _fill_padded(tables["best"], places[batch.best_rows])
    _fill_padded(tables["places"], places)


def _fill_padded(table: NDArray[np.int64], values: NDArray[np.int64]) -> None:
    """Values, and the last of them as often as fits behind them."""
    if len(table):
        table[: len(values)], table[len(values) :] = values, values[-1]


def _path_bits(parents: IntArray, starts: IntArray) -> NDArray[np.int64]:
    """[row] one bit for each row of its sequence that is the row itself or an ancestor of it.

    ``starts``: [row] the first row of its sequence.
    """
    bits: list[int] = []
    for row, (parent, start) in enumerate(zip(parents.tolist(), starts.tolist(), strict=True)):
        bits.append((bits[parent] if parent >= 0 else 0) | 1 << (row - start))
    return np.array(bits, dtype=np.uint64).view(np.int64)
