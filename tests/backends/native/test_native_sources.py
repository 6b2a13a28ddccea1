"""The sources by themselves: what names a processor, and what compilers say of them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.backends.native import toolchain
from headstart.backends.native.isa import AMX_EMULATED, INSTRUCTION_SETS, InstructionSet
from headstart.backends.native.toolchain import SOURCES
from headstart.common.processor import architecture

SETS = SOURCES / "kernels" / "isa"
FILES = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".h", ".cpp"))
GENERAL = [path for path in FILES if SETS not in path.parents or "generic" in path.parts]

STOREYS = ("kernels", "pass", "rounds")
"""Each may use its own headers and those of the storeys before it; ``api.h`` is below all, ``api.cpp`` above."""


def included(path: Path) -> set[Path]:
    """Headers of ours that a source includes in so many words."""
    names = re.findall(r'^\s*#\s*include\s+"(.*?)"', path.read_text(), flags=re.MULTILINE)
    return {SOURCES / name for name in names}


def storey_of(path: Path) -> str:
    return path.relative_to(SOURCES).parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_a_storey_stands_on_those_below_it(path: Path) -> None:
    others = included(path)
    assert [other for other in others if not other.exists()] == []
    if path.parent == SOURCES:
        assert path.name == "api.cpp" or not others
    else:
        below = STOREYS[: STOREYS.index(storey_of(path)) + 1]
        assert {other for other in others if other != SOURCES / "api.h" and storey_of(other) not in below} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_headers_are_included_before_anything_is_declared(path: Path) -> None:
    """So that none depends on what stands before it in another one."""
    text = re.sub(r"//.*|/\*.*?\*/", "", path.read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    declared = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    assert [line for line in lines[declared:] if re.match(r"#\s*include\b", line)] == []


def test_every_header_is_part_of_some_library() -> None:
    """By way of ``api.cpp``, or as what some traits name."""
    traits = set(SETS.glob("*/traits.h"))
    named = {SOURCES / name for path in traits for name in re.findall(r'"([\w/]+\.h)"', path.read_text())}
    reached: set[Path] = set()
    left = {SOURCES / "api.cpp", *traits, *named}
    while left:
        path = left.pop()
        reached.add(path)
        left |= included(path) - reached
    assert set(FILES) == reached


@pytest.mark.parametrize("path", GENERAL, ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_general_headers_name_no_processor(path: Path) -> None:
    text = re.sub(r"//.*", "", path.read_text())
    named = r"_mm\w*_\w+|__m\d+\w*|immintrin|arm_neon|asm\b|__(AVX|SSE|ARM|x86|aarch|i386)\w*|defined\(HEADSTART\w*"
    assert re.search(named, text) is None


@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, AMX_EMULATED], ids=lambda isa: isa.name)
def test_each_instruction_set_has_its_traits(isa: InstructionSet) -> None:
    (traits,) = re.findall(r'HEADSTART_TRAITS="(.*?)"', " ".join(isa.compiler_flags()))
    assert (SOURCES / traits).exists()


HERE = [isa for isa in (*INSTRUCTION_SETS, AMX_EMULATED) if isa.architecture in (None, architecture())]


COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name in ("g++", "clang++")
]


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.name)
def test_compilers_have_nothing_to_say(isa: InstructionSet, compiler: str) -> None:
    flags = (*toolchain.CODE_FLAGS, *isa.compiler_flags(), "-fopenmp", *toolchain.WARNINGS)
    command = [compiler, *flags, "-fsyntax-only", f"-I{SOURCES}", str(SOURCES / "api.cpp")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_half_precision_without_a_processors_help(tmp_path: Path) -> None:
    """Every half, and floats of all magnitudes, halfway cases among them, as NumPy converts them."""
    source = tmp_path / "halves.cpp"
    source.write_text(
        '#include <cstddef>\n#include "kernels/isa/portable.h"\n#include "kernels/vectors/vector.h"\nextern "C" {\n'
        "void narrow(const float *x, uint16_t *y, size_t n) { for (size_t i = 0; i < n; ++i) y[i] = to_half(x[i]); }\n"
        "void widen(const uint16_t *x, float *y, size_t n) { for (size_t i = 0; i < n; ++i) y[i] = from_half(x[i]); }\n"
        "void widen_lanes(const uint16_t *x, float *y, size_t n) {\n"
        "  for (size_t i = 0; i < n; i += 16) store(y + i, load_half(x + i));\n}\n}\n"
    )
    traits = '-DHEADSTART_TRAITS="kernels/isa/generic/traits.h"'
    flags = (*toolchain.CODE_FLAGS, traits, f"-I{SOURCES}", "-shared", "-fPIC")
    subprocess.run(["g++", *flags, str(source), "-o", str(tmp_path / "halves.so")], check=True)
    library = ctypes.CDLL(str(tmp_path / "halves.so"))

    def converted(name: str, values: NDArray[np.generic], dtype: type[np.generic]) -> NDArray[np.generic]:
        out = np.empty(len(values), dtype)
        getattr(library, name)(values.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p),
                               ctypes.c_size_t(len(values)))  # fmt: skip
        return out

    halves = np.arange(65536, dtype=np.uint16)
    floats = halves.view(np.float16).astype(np.float32)
    for name in ("widen", "widen_lanes"):
        said = converted(name, halves, np.float32)
        numbers = ~np.isnan(floats)
        np.testing.assert_array_equal(np.isnan(said), ~numbers)
        np.testing.assert_array_equal(said.view(np.uint32)[numbers], floats.view(np.uint32)[numbers])
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, np.uint32)
    near = floats.view(np.uint32)[:, None] + np.array([0, 0xFFF, 0x1000, 0x1001], np.uint32)
    given = np.concatenate([bits, near.ravel()]).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = given.astype(np.float16)
    said = converted("narrow", given, np.uint16).view(np.float16)
    numbers = ~np.isnan(given)
    assert np.isnan(said[~numbers]).all()
    np.testing.assert_array_equal(said.view(np.uint16)[numbers], wanted.view(np.uint16)[numbers])
