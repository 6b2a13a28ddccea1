"""EAGLE heads on the native library."""

from __future__ import annotations

import torch

from headstart.backends.native.caching_pass import trained_model, unfit_heads
from headstart.backends.native.packing import FEATURE_NORM, FINAL_NORM, FUSE, OUTPUT_HEAD, PART_NORMS, Packer
from headstart.backends.native.precision import Precision
from headstart.backends.native.stepping_pass import NativeSteppingPass
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleConfig, EagleHead
from headstart.models.linear_weights import LinearWeights, NormWeights

_FUSED, _BESIDE, _BESIDE_NORMED = 1, 2, 3
"""``Entry`` of ``src/pass/decoder.h``."""


def supports_head(config: EagleConfig) -> str | None:
    """None if the native pass can run such a head, else the reason in a few words."""
    if config.norm_before_fc and config.fc_norm:
        return "true features are normed twice"
    return unfit_heads(config)


class NativeEaglePass(NativeSteppingPass):
    """An EAGLE head.

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
        model = trained_model(config, supports_head(config), entry, embedding, precision, threads, isa)
        super().__init__(model, [config.rope], head.target_ids, -1 if config.norm_output else config.num_layers)
        with torch.inference_mode():
            self._pack(head, tables)

    def _pack(self, head: EagleHead, tables: TargetTables) -> None:
        config, packer = self.config, Packer(self._library, self.handle)
        self._pack_layers(packer, head.layers, first_is_normed=config.side_by_side)
        packer.linear(-1, FUSE, LinearWeights(head.fc.weight, head.fc.bias))
        if config.side_by_side:
            packer.norm(-1, FEATURE_NORM, NormWeights(head.layers[0].hidden_norm.weight))
            packer.norm(-1, FINAL_NORM, NormWeights(head.norm.weight))
        packer.linear(-1, OUTPUT_HEAD, LinearWeights(head.output_rows(tables.head)))
        count = 1 if config.norm_before_fc else len(config.taps) if config.fc_norm else 0
        for i in range(count):
            name = "input_norm" if config.norm_before_fc else f"fc_norm.{i}"
            packer.norm(-1, PART_NORMS + i, NormWeights(head.get_parameter(f"{name}.weight")))
