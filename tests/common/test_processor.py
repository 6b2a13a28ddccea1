"""What is read off the processor, and that PyTorch survives a matrix unit whose tiles are hidden."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstart.backends.native.loader import usable_sets
from headstart.common import processor

VARIABLE = "ONEDNN_MAX_CPU_ISA"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What stands in for /proc/cpuinfo."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "_CPUINFO", path)
    monkeypatch.delenv(VARIABLE, raising=False)
    processor.cpu_flags.cache_clear()
    yield path
    processor.cpu_flags.cache_clear()


def test_flags_are_those_of_the_first_processor(told: Path) -> None:
    told.write_text("processor\t: 0\ncpuid level\t: 31\nflags\t\t: fpu avx2 fma\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert processor.cpu_flags() == {"fpu", "avx2", "fma"}


def test_arm_calls_its_flags_features(told: Path) -> None:
    told.write_text("processor\t: 0\nFeatures\t: fp asimd asimddp bf16\nCPU architecture: 8\n\nprocessor\t: 1\n")
    assert processor.cpu_flags() == {"fp", "asimd", "asimddp", "bf16"}
    assert processor.amd_family() == 0


@pytest.mark.parametrize(
    ("said", "flags"),
    [
        ("hw.optional.AdvSIMD: 1\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_BF16: 0\n", "asimd asimddp"),
        ("hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_BF16: 1\n", "asimddp bf16"),
        (
            "machdep.cpu.features: FPU AVX1.0 FMA F16C\nmachdep.cpu.leaf7_features: AVX2 AVX512F AVX512VNNI\n",
            "fpu avx1.0 fma f16c avx2 avx512f avx512_vnni",
        ),
        ("", ""),
    ],
)
def test_macos_is_asked_by_sysctl(told: Path, monkeypatch: pytest.MonkeyPatch, said: str, flags: str) -> None:
    sysctl = told.parent / "sysctl"
    sysctl.write_text(f"#!/bin/sh\ncat << end\n{said}end\nexit 1\n")  # as where it knows some of the names only
    sysctl.chmod(0o755)
    monkeypatch.setattr(processor, "_SYSCTL", str(sysctl))
    monkeypatch.setattr(processor.sys, "platform", "darwin")
    assert processor.cpu_flags() == set(flags.split())
    processor.cpu_flags.cache_clear()
    monkeypatch.setattr(processor, "_SYSCTL", str(told.parent / "none"))
    assert processor.cpu_flags() == frozenset()


@pytest.mark.parametrize(
    ("machine", "name"), [("x86_64", "x86_64"), ("AMD64", "x86_64"), ("arm64", "aarch64"), ("riscv64", "riscv64")]
)
def test_an_architecture_has_one_name(monkeypatch: pytest.MonkeyPatch, machine: str, name: str) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert processor.architecture() == name


@pytest.mark.parametrize("text", [None, "", "isa\t: rv64imafdc\nmmu\t: sv39\n"])
def test_a_system_that_tells_nothing_has_nothing(told: Path, text: str | None) -> None:
    if text is not None:
        told.write_text(text)
    assert processor.cpu_flags() == frozenset()
    processor.keep_pytorch_off_hidden_tiles()
    assert VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("flags", "level", "hidden"),
    [("avx512f amx_tile", 28, True), ("avx512f amx_tile", 31, False), ("avx512f", 28, False)],
)
def test_onednn_is_limited_where_tiles_are_hidden(
    told: Path, monkeypatch: pytest.MonkeyPatch, flags: str, level: int, hidden: bool
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that it is put back
    monkeypatch.delenv(VARIABLE)
    told.write_text(f"processor\t: 0\ncpuid level\t: {level}\nflags\t\t: {flags}\n")
    processor.keep_pytorch_off_hidden_tiles()
    assert (VARIABLE in os.environ) is hidden


def test_a_limit_of_the_users_own_stays(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told.write_text("cpuid level\t: 28\nflags\t\t: amx_tile\n")
    monkeypatch.setenv(VARIABLE, "AVX2")
    processor.keep_pytorch_off_hidden_tiles()
    assert os.environ[VARIABLE] == "AVX2"


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["headstart", "torch"])
def test_pytorch_multiplies_bf16_whichever_is_imported_first(first: str) -> None:
    """On a machine whose tiles are hidden it dies of an illegal instruction without the limit."""
    call = f"import {first}, headstart, torch; a = torch.ones(54, 96).bfloat16(); print(float((a @ a.T)[0, 0]))"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", call], env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "96.0"


_ZEN4, _ZEN5 = (f"vendor_id\t: AuthenticAMD\ncpu family\t: {family}\n" for family in (25, 26))
_ALL = "avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512_vnni"


@pytest.mark.parametrize(
    ("vendor", "flags", "fastest"),
    [
        (_ZEN5, f"{_ALL} avx512_bf16", "avx512bf16"),
        (_ZEN5, _ALL, "avx512"),
        (_ZEN4, f"{_ALL} avx512_bf16", "zen4"),
        (_ZEN4, "avx2 fma f16c", "avx2"),  # the third generation, of the same family
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", f"{_ALL} avx512_bf16", "avx512"),
        ("", f"{_ALL} avx512_bf16", "avx512"),
        ("", "avx2 fma f16c avx_vnni", "avxvnni"),
        ("", "avx2 fma f16c", "avx2"),
        ("", "avx", "generic"),
        ("", "", "generic"),
    ],
)
def test_the_fastest_set_is_taken_and_bf16_dot_products_only_at_full_rate(
    told: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, flags: str, fastest: str
) -> None:
    monkeypatch.delenv("HEADSTART_NATIVE", raising=False)
    told.write_text(f"processor\t: 0\n{vendor}flags\t\t: {flags}\n\n")
    assert next(iter(usable_sets())).name == fastest
    named = usable_sets("avx512bf16")  # whoever names it gets it, fast or not
    assert [isa.name for isa in named] == (["avx512bf16"] if "avx512_bf16" in flags else [])
