"""Instruction sets the native pass is written for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from headstart.common.processor import amd_family, architecture

_BASELINES = {"x86_64": "-march=x86-64", "aarch64": "-march=armv8-a"}
"""What every processor of an architecture has, whatever the compiler is set to; of others that is its choice."""


@dataclass(frozen=True)
class InstructionSet:
    """One way to compile the native sources."""

    name: str
    extensions: tuple[str, ...] = ()
    """What the compiler is to use beyond the baseline."""
    cpu_flags: frozenset[str] = frozenset()
    """Names of ``processor.cpu_flags`` that it needs."""
    architecture: str | None = None
    """As ``processor.architecture`` calls it; None: any."""
    pays: Callable[[], bool] = lambda: True
    """Whether a processor that has all of it is faster with it than with the next one."""
    has_matrix_unit: bool = False
    """Whether it multiplies whole tiles at once."""
    multiplies_bytes: bool = True
    """Whether it has a dot product of 8-bit numbers."""
    blocks_pay: bool = True
    """Whether a row against weights in 4-bit blocks takes less time than against the same ones in bf16."""

    def compiler_flags(self, target: str | None = None) -> tuple[str, ...]:
        """The header of its traits (``src/kernels/traits.h``), and what the compiler may use, no more.

        Of an instruction set of any architecture, for ``target``; None: for this machine's.
        """
        baseline = _BASELINES.get(self.architecture or target or architecture())
        traits = f'-DHEADSTART_TRAITS="kernels/isa/{self.name.replace("-", "_")}/traits.h"'
        return (traits, *([baseline] if baseline else []), *self.extensions)


_x86, _arm = (partial(InstructionSet, architecture=name) for name in _BASELINES)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX2_CPU = frozenset({"avx2", "fma", "f16c"})
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mprefer-vector-width=512")
_AVX512_CPU = _AVX2_CPU | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}

# Families of AMD's processors. Both multiply bf16 pairs as fast as floats, where others take twice as long or more
# (docs/decisions/0032); the fourth generation, whose registers are twice as wide as its units, asks memory another way.
_ZEN4, _ZEN5 = 0x19, 0x1A

INSTRUCTION_SETS = (
    _x86(
        "amx",
        (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _AVX512_CPU | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
        has_matrix_unit=True,
    ),
    _x86("avx512bf16", (*_AVX512, "-mavx512bf16"), _AVX512_CPU | {"avx512_bf16"}, pays=lambda: amd_family() >= _ZEN5),
    _x86("zen4", (*_AVX512, "-mavx512bf16"), _AVX512_CPU | {"avx512_bf16"}, pays=lambda: amd_family() == _ZEN4),
    _x86("avx512", _AVX512, _AVX512_CPU),
    _x86("avxvnni", (*_AVX2, "-mavxvnni"), _AVX2_CPU | {"avx_vnni"}),
    _x86("avx2", _AVX2, _AVX2_CPU, multiplies_bytes=False),
    _arm("neon-bf16", ("-march=armv8.2-a+dotprod+bf16",), frozenset({"asimd", "asimddp", "bf16"})),
    _arm("neon-dot", ("-march=armv8.2-a+dotprod",), frozenset({"asimd", "asimddp"})),
    _arm("neon", (), frozenset({"asimd"}), multiplies_bytes=False),
    InstructionSet("generic", multiplies_bytes=False, blocks_pay=False),
)
"""Fastest first, of each architecture."""

AMX_EMULATED = _x86("amx-emulated", _AVX2, _AVX2_CPU, has_matrix_unit=True)
"""The matrix-unit code with its tile instructions emulated, on vectors of AVX2: for tests without the unit."""


def by_name(name: str) -> InstructionSet | None:
    """The instruction set called ``name``, None if there is none."""
    return next((isa for isa in (*INSTRUCTION_SETS, AMX_EMULATED) if isa.name == name), None)
