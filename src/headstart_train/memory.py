"""Memory that a training frees and takes again."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""


def keep_freed() -> None:
    """Let this process keep the memory that it frees, for what it allocates next.

    glibc gives large blocks back to the system as they are freed, and those that are allocated come page by page,
    zeroed: where a step of training makes and frees gigabytes, that takes up to a third of it
    (docs/experiments/training.md, 0069).
    Other C libraries do as they do.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Older glibc takes no more than 32 MB. Once one threshold is set, it no longer raises the other by itself.
    if mallopt is not None and (mallopt(_M_MMAP_THRESHOLD, 1 << 30) or mallopt(_M_MMAP_THRESHOLD, 32 << 20)):
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
