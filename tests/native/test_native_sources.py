"""The sources by themselves: what names a processor, and what compilers say of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headstart.native import loader
from headstart.native.isa import AMX_EMULATED, INSTRUCTION_SETS, InstructionSet
from headstart.native.loader import SOURCES
from headstart.processor import architecture

OF_PROCESSORS = r"(traits|vector|kernel|dot_bytes|twelve_bits|bf16_dot|blocks|tiles)_\w+|tiles|x86|arm"
GENERAL = [path for path in sorted(SOURCES.iterdir()) if not re.fullmatch(OF_PROCESSORS, path.stem)]
GENERAL += [SOURCES / f"{name}.h" for name in ("vector_math", "vector_quads", "vector_generic")]
GENERAL += [SOURCES / f"{name}.h" for name in ("dot_bytes_quads", "dot_bytes_generic", "traits_generic", "blocks_vnni")]


@pytest.mark.parametrize("path", GENERAL, ids=lambda path: path.name)
def test_general_headers_name_no_processor(path: Path) -> None:
    text = re.sub(r"//.*", "", path.read_text())
    named = r"_mm\w*_\w+|__m\d+\w*|immintrin|arm_neon|asm\b|__(AVX|SSE|ARM|x86|aarch|i386)\w*|defined\(HEADSTART\w*"
    assert re.search(named, text) is None


@pytest.mark.parametrize("isa", [*INSTRUCTION_SETS, AMX_EMULATED], ids=lambda isa: isa.name)
def test_each_instruction_set_has_its_traits(isa: InstructionSet) -> None:
    (traits,) = re.findall(r'HEADSTART_TRAITS="(.*?)"', " ".join(isa.compiler_flags()))
    assert (SOURCES / traits).exists()


HERE = [isa for isa in (*INSTRUCTION_SETS, AMX_EMULATED) if isa.architecture in (None, architecture())]


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("isa", HERE, ids=lambda isa: isa.name)
def test_compilers_have_nothing_to_say(isa: InstructionSet) -> None:
    flags = (*loader.CODE_FLAGS, *isa.compiler_flags(), "-fopenmp", *loader.WARNINGS)
    done = subprocess.run(
        ["g++", *flags, "-fsyntax-only", str(SOURCES / "api.cpp")], check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
