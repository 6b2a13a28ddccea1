"""What this processor has, as Linux tells it, and what of that PyTorch must not use."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_TILE_LEAF = 0x1D  # of CPUID: how large the matrix unit's tiles are
_MOST_VARIABLE, _MOST_WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"


@cache
def cpu_flags() -> frozenset[str]:
    """Feature names of this processor; empty where they cannot be read."""
    return frozenset(_cpuinfo().get("flags", "").split())


def hides_tiles() -> bool:
    """Whether a matrix unit is there (AMX) but the hypervisor does not tell its tiles' size."""
    return "amx_tile" in cpu_flags() and int(_cpuinfo().get("cpuid level", _TILE_LEAF)) < _TILE_LEAF


def amd_family() -> int:
    """The family of CPUID, where AMD made the processor; else 0."""
    found = _cpuinfo()
    return int(found.get("cpu family", 0)) if found.get("vendor_id") == "AuthenticAMD" else 0


def keep_pytorch_off_hidden_tiles() -> None:
    """Limits oneDNN to AVX-512 where tiles are hidden: it would take their size for zero and die of an illegal
    instruction in the first bf16 product. It reads the variable at its first product; one that is set stays."""
    if hides_tiles():
        os.environ.setdefault(_MOST_VARIABLE, _MOST_WITHOUT_TILES)


def _cpuinfo() -> dict[str, str]:
    """Of the first processor."""
    try:
        first = _CPUINFO.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
