"""What this processor has, as its system tells it, and what of that PyTorch must not use."""

from __future__ import annotations

import os
import sys
from functools import cache

# Imported with the package, before Ctrl-C ends a command quietly: what is slow to import is imported where it is used.

_CPUINFO = "/proc/cpuinfo"
_SYSCTL = "/usr/sbin/sysctl"
_TILE_LEAF = 0x1D  # of CPUID: how large the matrix unit's tiles are
_MOST_VARIABLE, _MOST_WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"

# What macOS calls otherwise than Linux: of Arm each feature is a number of its own, of x86 all stand in two lists.
_APPLE_ARM = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_BF16": "bf16",
}
_APPLE_X86 = ("machdep.cpu.features", "machdep.cpu.leaf7_features")


def architecture() -> str:
    """ "x86_64", "aarch64" or what else the system calls it."""
    import platform

    return architecture_named(platform.machine())


def architecture_named(name: str) -> str:
    """The same, of any machine that is called ``name``."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name.lower(), name.lower())


@cache
def cpu_flags() -> frozenset[str]:
    """Feature names of this processor, as Linux has them; empty where they cannot be read."""
    if sys.platform == "darwin":
        return _apple_flags()
    found = _cpuinfo()
    return frozenset(found.get("flags", found.get("Features", "")).split())


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
        with open(_CPUINFO) as file:
            first = file.read().partition("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}


def _apple_flags() -> frozenset[str]:
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in _sysctl().splitlines())}
    of_arm = {ours for theirs, ours in _APPLE_ARM.items() if told.get(theirs) == "1"}
    # "AVX1.0" and "AVX2"; "AVX512VNNI" is "avx512_vnni" here.
    of_x86 = " ".join(told.get(name, "") for name in _APPLE_X86).lower().replace("avx512vnni", "avx512_vnni").split()
    return frozenset(of_arm).union(of_x86)


def _sysctl() -> str:
    """What macOS tells; names that it does not know are left out."""
    import subprocess

    command = [_SYSCTL, *_APPLE_ARM, *_APPLE_X86]
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
