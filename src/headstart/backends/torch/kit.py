"""``BackendKit`` by PyTorch, on any device."""

from __future__ import annotations

import torch

from headstart.backends.torch.block_pass import BlockPass
from headstart.backends.torch.eagle_pass import EaglePass
from headstart.backends.torch.masked_pass import MaskedPass
from headstart.backends.torch.multi_token_pass import MultiTokenPass
from headstart.backends.torch.parallel_pass import ParallelPass, torch_kit
from headstart.backends.torch.recorder import Recorder
from headstart.drafting.heads.parallel import ParallelHeads
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import ConfigError
from headstart.models.multi_token import MultiTokenModules

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class TorchKit:
    """Heads as PyTorch computes them; everything else is left to NumPy and Python.

    Args:
        device: where heads are computed, the target's.
        recorder: of that device, records drafts of heads; None: nothing is recorded.
    """

    rows = None

    def __init__(self, device: torch.device | str = "cpu", recorder: Recorder | None = None) -> None:
        self.device, self._recorder = torch.device(device), recorder
        # An accelerator waits for weights, however few rows there are.
        self.has_cheap_rows = self.device.type != "cpu"

    def head_pass(self, head: EagleHead, tables: TargetTables, precision: str) -> EaglePass:
        """See ``BackendKit``."""
        return EaglePass(head, tables, self._dtype(precision), self.device, self._recorder)

    def masked_pass(self, head: EagleHead, tables: TargetTables, precision: str) -> MaskedPass:
        """See ``BackendKit``."""
        return MaskedPass(head, tables, self._dtype(precision), self.device, self._recorder)

    def block_pass(self, head: BlockHead, tables: TargetTables, precision: str) -> BlockPass:
        """See ``BackendKit``."""
        return BlockPass(head, tables, torch_kit(self._dtype(precision), self.device, self._recorder))

    def parallel_pass(self, heads: ParallelHeads, tables: TargetTables, precision: str) -> ParallelPass:
        """See ``BackendKit``."""
        return ParallelPass(heads, tables, torch_kit(self._dtype(precision), self.device))

    def multi_token_pass(
        self, modules: MultiTokenModules, tables: TargetTables, precision: str, vocabulary: int = 0
    ) -> MultiTokenPass:
        """See ``BackendKit``."""
        return MultiTokenPass(modules, tables, self._dtype(precision), self.device)

    def text_index(self, max_depth: int, **settings: object) -> None:
        """None: drafters have an index of their own in Python."""

    def _dtype(self, precision: str) -> torch.dtype:
        """A precision by its name; "auto": bfloat16 where the device multiplies it at full rate.

        Raises:
            ConfigError: only the native pass knows the precision.
        """
        if precision == "auto":
            host = self.device.type == "cpu"
            fast = torch.ops.mkldnn._is_mkldnn_bf16_supported() if host else True
            return torch.bfloat16 if fast else torch.float32
        if precision not in _DTYPES:
            raise ConfigError(f"precision is {precision!r}, which needs the native pass; use bf16 or fp32.")
        return _DTYPES[precision]
