"""Memory between models."""

from __future__ import annotations

import ctypes


def give_back_freed() -> None:
    """Give memory that was freed back to the system, where the C library keeps it for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
