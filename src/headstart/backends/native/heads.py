"""EAGLE heads on the native library: a step is one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headstart.backends.native.caching_pass import NativeCachingPass, chains, unfit_heads
from headstart.backends.native.growth import NativeGrowth
from headstart.backends.native.packing import (
    BORROWED,
    FEATURE_NORM,
    FINAL_NORM,
    FUSE,
    OUTPUT_HEAD,
    PART_NORMS,
    Packer,
    address,
    as_float32,
    as_int32,
)
from headstart.backends.native.precision import Precision
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleConfig, EagleHead
from headstart.models.linear_weights import LinearWeights, NormWeights
from headstart.passes.batch import IntArray

_FUSED, _BESIDE, _BESIDE_NORMED = 1, 2, 3
"""``Entry`` of ``src/pass/decoder.h``."""


def supports_head(config: EagleConfig) -> str | None:
    """None if the native pass can run such a head, else the reason in a few words."""
    if config.norm_before_fc and config.fc_norm:
        return "true features are normed twice"
    return unfit_heads(config)


class NativeEaglePass(NativeCachingPass):
    """Steps of a head over rows of several sequences (``HeadPass``), each one native call.

    A row's bits do not depend on the rows beside it. States are float32.

    Args:
        head: weights, copied; ``supports_head`` of its configuration must be None.
        tables: the target's; used where the head has none of its own.
        precision: of matrices and cache, whatever the target's.
        threads: team size, None for ``backends.native.team``'s.
        isa: instruction set to use instead of the fastest (see ``load_library``).

    Raises:
        ConfigError: the head is not supported, or there is no native path on this machine.
    """

    def __init__(
        self,
        head: EagleHead,
        tables: TargetTables,
        precision: Precision = "bf16",
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self.config = config = head.config
        beside = _BESIDE_NORMED if config.norm_before_residual else _BESIDE
        entry = beside if config.side_by_side else _FUSED
        embedding = tables.embedding if head.embedding is None else head.embedding
        super().__init__(config, supports_head(config), entry, embedding, head.target_ids, precision, threads, isa)
        with torch.inference_mode():
            self._pack(head, tables)
        self._state_tap = np.array([-1 if config.norm_output else config.num_layers], dtype=np.int32)

    def read(self, tokens: IntArray, features: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        last = np.cumsum([group.count for group in groups], dtype=np.int32) - np.int32(1)
        states, logits = self._run(tokens, features, groups, last, true=True)
        return states[torch.from_numpy(last).long()], logits

    def step(self, tokens: IntArray, states: Tensor, groups: Sequence[DraftRows]) -> tuple[Tensor, Tensor]:
        """See ``HeadPass``."""
        return self._run(tokens, states, groups, np.arange(len(tokens), dtype=np.int32), true=False)

    def growth(self, width: int, ids: IntArray) -> NativeGrowth:
        """See ``HeadPass``."""
        return NativeGrowth(self._library, self.handle, self.config, self._pages, self._ropes, width, ids)

    def _run(
        self, tokens: IntArray, inputs: Tensor, groups: Sequence[DraftRows], wanted: IntArray, true: bool
    ) -> tuple[Tensor, Tensor]:
        """States and logits of the rows ``wanted``; the states stand at their rows."""
        config, rows = self.config, len(tokens)
        width = config.target_hidden_size * len(config.taps) if true else config.hidden_size
        if inputs.shape != (rows, width):
            raise ValueError(f"features are {tuple(inputs.shape)}; rows x features is {(rows, width)}")
        cached = np.array([group.true_rows for group in groups], dtype=np.int32)
        positions = np.array([position for group in groups for position in group.positions], dtype=np.int32)
        starts = np.cumsum([0, *(group.count for group in groups)], dtype=np.int32)
        # A true row follows the one before it.
        parents, paths = (chains(starts), None) if true else (None, np.concatenate([_slots(group) for group in groups]))
        self._ropes.reach(int(positions.max()) + 1)
        inputs = as_float32(inputs)
        states, logits = self._compute(
            [group.cache for group in groups],
            cached,
            starts,
            as_int32(tokens),
            wanted,
            self._state_tap,
            positions=address(positions),
            parents=None if parents is None else address(parents),
            inputs=inputs.data_ptr(),
            true_features=true,
            path_length=0 if paths is None else paths.shape[1],
            paths=None if paths is None else address(paths),
        )
        for group in groups:
            group.cache.rows += group.count
        return states, logits

    def _pack(self, head: EagleHead, tables: TargetTables) -> None:
        config, packer = self.config, Packer(self._library, self.handle)
        self._pack_layers(packer, head.layers, first_is_normed=config.side_by_side)
        packer.linear(-1, FUSE, LinearWeights(head.fc.weight, head.fc.bias))
        if config.side_by_side:
            packer.norm(-1, FEATURE_NORM, NormWeights(head.layers[0].hidden_norm.weight))
            packer.norm(-1, FINAL_NORM, NormWeights(head.norm.weight))
            packer.linear(-1, OUTPUT_HEAD, LinearWeights(head.lm_head.weight))
        else:
            packer.linear(-1, OUTPUT_HEAD, LinearWeights(tables.head))
        count = 1 if config.norm_before_fc else len(config.taps) if config.fc_norm else 0
        for i in range(count):
            name = "input_norm" if config.norm_before_fc else f"fc_norm.{i}"
            packer.norm(-1, PART_NORMS + i, NormWeights(head.get_parameter(f"{name}.weight")))
        packer.embedding(self._embedding, None, BORROWED)


def _slots(group: DraftRows) -> IntArray:
    """int32 [row, level] of a draft's rows, counted from the first in the cache."""
    assert group.paths is not None
    return as_int32(group.paths + np.int32(group.true_rows))
