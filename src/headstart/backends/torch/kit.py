"""``BackendKit`` by PyTorch, on any device."""

from __future__ import annotations

import torch

from headstart.backends.torch.head_kit import Kit, torch_kit
from headstart.backends.torch.recorder import Recorder
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.method import AS_THE_MODEL, HeadPasses, RunsHead
from headstart.errors import ConfigError

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

    def run(
        self, passes: HeadPasses[RunsHead], head: object, tables: TargetTables, precision: str, **wishes: int
    ) -> RunsHead:
        """See ``BackendKit``."""
        return passes.by_torch()(head, tables, self.products(precision), **wishes)

    def where(self, passes: HeadPasses[RunsHead], head: object) -> str:
        """See ``BackendKit``."""
        return "PyTorch, since there is no native pass here" if self.device.type == "cpu" else AS_THE_MODEL

    def products(self, precision: str) -> Kit:
        """What heads are computed with.

        Raises:
            ConfigError: only the native pass knows the precision.
        """
        return torch_kit(self._dtype(precision), self.device, self._recorder)

    def text_index(self, bounds: object) -> None:
        """None: drafters have an index of their own in Python."""

    def _dtype(self, precision: str) -> torch.dtype:
        """A precision by its name; "auto": bfloat16 where the device multiplies it at full rate."""
        if precision == "auto":
            host = self.device.type == "cpu"
            fast = torch.ops.mkldnn._is_mkldnn_bf16_supported() if host else True
            return torch.bfloat16 if fast else torch.float32
        if precision not in _DTYPES:
            raise ConfigError(f"precision is {precision!r}, which needs the native pass; use bf16 or fp32.")
        return _DTYPES[precision]
