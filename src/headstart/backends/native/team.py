"""How many threads compute a pass."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_OLD_QUOTA, _OLD_PERIOD = (Path(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))


def team_size() -> int:
    """PyTorch's number of threads, but no more than the container may use: threads that are held back by its quota
    hold up all others at every barrier. OMP_NUM_THREADS overrules it."""
    threads = torch.get_num_threads()
    share = None if "OMP_NUM_THREADS" in os.environ else processor_share()
    return threads if share is None else max(1, min(threads, int(share)))


def processor_share() -> float | None:
    """Processors that the container's quota amounts to; None: it has none."""
    try:
        quota, period = (
            _QUOTA.read_text().split() if _QUOTA.exists() else (_OLD_QUOTA.read_text(), _OLD_PERIOD.read_text())
        )
        share = int(quota) / int(period)  # version 2 says "max" where there is no quota
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return share if share > 0 else None  # and version 1 says -1
