"""What a training frees stays its own."""

from __future__ import annotations

import ctypes
import resource
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library keeps memory in its own way")
def test_freed_memory_is_kept() -> None:
    """In a process of its own, for it holds for good: blocks that come and go bring no new pages."""
    program = """
import resource
from headstart_train.memory import keep_freed
keep_freed()
faults = []
for _ in range(4):
    block = b"1" * (1 << 24)
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert int(printed) < (1 << 24) // resource.getpagesize()  # one of the three
