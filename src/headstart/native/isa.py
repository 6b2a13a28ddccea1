"""Instruction sets the native pass is written for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headstart.processor import amd_family


@dataclass(frozen=True)
class InstructionSet:
    """One way to compile the native sources."""

    name: str
    compiler_flags: tuple[str, ...]
    cpu_flags: frozenset[str]
    """Names in /proc/cpuinfo that it needs."""
    pays: Callable[[], bool] = lambda: True
    """Whether a processor that has all of it is faster with it than with the next one."""


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512")
_AVX512_CPU = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx2", "fma", "f16c"})

# Families of AMD's processors. Both multiply bf16 pairs as fast as floats, where others take twice as long or more
# (docs/decisions/0032); the fourth generation, whose registers are twice as wide as its units, asks memory another way.
_ZEN4, _ZEN5 = 0x19, 0x1A

INSTRUCTION_SETS = (
    InstructionSet(
        "amx",
        ("-DHEADSTART_AMX", *_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _AVX512_CPU | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    ),
    InstructionSet(
        "avx512bf16",
        ("-DHEADSTART_AVX512BF16", *_AVX512, "-mavx512bf16"),
        _AVX512_CPU | {"avx512_bf16"},
        lambda: amd_family() >= _ZEN5,
    ),
    InstructionSet(
        "zen4",
        ("-DHEADSTART_AVX512BF16", "-DHEADSTART_ZEN4", *_AVX512, "-mavx512bf16"),
        _AVX512_CPU | {"avx512_bf16"},
        lambda: amd_family() == _ZEN4,
    ),
    InstructionSet("avx512", ("-DHEADSTART_AVX512", *_AVX512), _AVX512_CPU),
    InstructionSet(
        "avxvnni", ("-DHEADSTART_AVXVNNI", *_AVX2, "-mavxvnni"), frozenset({"avx2", "fma", "f16c", "avx_vnni"})
    ),
    InstructionSet("avx2", ("-DHEADSTART_AVX2", *_AVX2), frozenset({"avx2", "fma", "f16c"})),
)
"""Fastest first."""

AMX_EMULATED = InstructionSet("amx-emulated", ("-DHEADSTART_AMX", "-DHEADSTART_AMX_EMULATED", *_AVX512), _AVX512_CPU)
"""The matrix-unit code with its tile instructions emulated: for tests on processors without the unit."""


def by_name(name: str) -> InstructionSet | None:
    """The instruction set called ``name``, None if there is none."""
    return next((isa for isa in (*INSTRUCTION_SETS, AMX_EMULATED) if isa.name == name), None)
