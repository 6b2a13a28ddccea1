"""What can compute here."""

from __future__ import annotations

import torch


def available_devices() -> list[str]:
    """Those of this machine, "cpu" first."""
    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]
