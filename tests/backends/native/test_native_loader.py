"""The library is compiled once, on first use or ahead of it, and nothing that goes wrong with it stops the program."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from native_cases import has_isa

from headstart.backends.native import loader, toolchain
from headstart.backends.native.isa import INSTRUCTION_SETS, InstructionSet, by_name
from headstart.errors import ConfigError

needs_compiler = pytest.mark.skipif(not has_isa("generic"), reason="no compiler on this machine")


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Where libraries are kept and looked for if the cache cannot be written.
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(loader.tempfile, "tempdir", str(tmp_path / "other"))
    monkeypatch.delenv("HEADSTART_NATIVE", raising=False)
    loader.forget_loaded()
    yield
    loader.forget_loaded()


def compiler(path: Path, build: str, version: str = "exec g++ --version") -> str:
    """A compiler that logs each build and then runs ``build``, where ``$last`` is the file to write."""
    path.mkdir(exist_ok=True)
    script = path / "compiler"
    script.write_text(
        f"#!/bin/sh\nfor last; do :; done\n[ $last = --version ] && {version} && exit\n"
        f"echo build >> {path}/builds\n{build}\n"
    )
    script.chmod(0o755)
    return str(script)


def isa_named(name: str) -> InstructionSet:
    isa = by_name(name)
    assert isa is not None
    return isa


@pytest.fixture(scope="module")
def compiled() -> Path:
    """What the cache of this machine has."""
    own = loader.usable_sets()[0]
    return loader.find_library(own) or loader.compile_library(own)


@pytest.fixture(scope="module")
def copying(compiled: Path) -> str:
    """A build in no time."""
    return f'umask 022; cat {compiled} > "$last"'


def builds(path: Path) -> int:
    log = path / "builds"
    return len(log.read_text().splitlines()) if log.exists() else 0


@needs_compiler
@pytest.mark.parametrize("really", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_compiles_once_for_each_cache(
    really: bool, copying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, 'exec g++ "$@" -O0' if really else copying))
    library = loader.load_library("generic")
    assert library is not None
    assert library.isa == "generic"
    loader.forget_loaded()
    assert loader.load_library("generic") is not None
    assert builds(tmp_path) == 1
    names = [path.name for path in loader.cache_directory().iterdir()]
    assert len([name for name in names if name.endswith(".so")]) == 1


@needs_compiler
def test_a_failed_build_is_one_log_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "echo 'no such header' >&2; exit 1"))
    with caplog.at_level(logging.WARNING):
        assert loader.load_library("generic") is None
        assert loader.load_library("generic") is None
    (failure,) = [record for record in caplog.records if record.name == loader.__name__]
    assert "no such header" in failure.getMessage()
    assert builds(tmp_path) == 1
    assert not list(loader.cache_directory().glob("*.so"))


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    with caplog.at_level(logging.WARNING):
        assert loader.load_library() is None
        assert loader.load_library("generic") is None
    assert len(caplog.records) == 1
    assert "no C++ compiler '/nonexistent/compiler'" in caplog.text
    assert "PyTorch" in caplog.text


@needs_compiler
@pytest.mark.parametrize("home", ["a file", "nobody's"])
def test_where_the_cache_cannot_be_written_a_private_temporary_folder_is_used(
    tmp_path: Path, copying: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, home: str
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    if home == "a file":
        (tmp_path / "home").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(loader.Path, "home", no_home)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(loader.tempfile, "tempdir", str(temporary))
    # As with ccache: a command of two words.
    monkeypatch.setenv("CXX", "env " + compiler(tmp_path, copying))
    for _ in range(2):
        loader.forget_loaded()
        assert loader.load_library("generic") is not None
    assert builds(tmp_path) == 1
    (ours,) = temporary.iterdir()
    assert ours.stat().st_mode & 0o777 == 0o700
    # What others may have put there is not run.
    ours.chmod(0o777)
    loader.forget_loaded()
    with caplog.at_level(logging.WARNING):
        assert loader.load_library("generic") is None
    assert "open to other users" in caplog.text


@needs_compiler
def test_without_a_compiler_what_any_other_has_made_is_taken(
    tmp_path: Path, copying: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = []
    for age, version in ((0, "echo 12"), (200, "echo 13"), (100, "echo 14")):
        monkeypatch.setenv("CXX", compiler(tmp_path / str(age), copying, version))
        made.append(loader.compile_library(isa_named("generic")))
        os.utime(made[-1], (1e9 - age, 1e9 - age))
    assert len(set(made)) == 3
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    with caplog.at_level(logging.WARNING):
        library = loader.load_library()
    assert library is not None
    assert library.isa == "generic"
    assert not caplog.records
    assert loader.find_library(isa_named("generic")) == made[0]


@needs_compiler
@pytest.mark.parametrize("other", ["an option", "a source", "the instruction set"])
def test_without_a_compiler_nothing_is_taken_that_behaves_otherwise(
    tmp_path: Path, copying: str, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    words = compiler(tmp_path, copying)
    monkeypatch.setenv("CXX", f"{words} -ffast-math" if other == "an option" else words)
    path = loader.compile_library(isa_named("avx512" if other == "the instruction set" else "generic"))
    if other == "a source":
        sources = tmp_path / "src"
        sources.mkdir()
        (sources / "api.cpp").write_text("")
        monkeypatch.setattr(toolchain, "SOURCES", sources)
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    assert path.exists()
    assert loader.find_library(isa_named("generic")) is None
    assert loader.load_library("generic") is None


@pytest.fixture
def shipped(tmp_path: Path, copying: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a wheel that carries two libraries, made by a compiler that is not here."""
    monkeypatch.setattr(toolchain, "SHIPPED", tmp_path / "compiled")
    monkeypatch.setenv("CXX", compiler(tmp_path / "elsewhere", copying, "echo 9"))
    (tmp_path / "compiled").mkdir()
    for name in ("generic", "avx2"):
        made = loader.compile_library(isa_named(name))
        made.rename(tmp_path / "compiled" / made.name)
        made.with_suffix(".sha256").unlink()
    return tmp_path / "compiled"


@needs_compiler
@pytest.mark.parametrize("words", ["/nonexistent/compiler", "false", "g++"])
def test_what_a_wheel_brings_is_taken_whatever_compiler_is_here(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, words: str
) -> None:
    monkeypatch.setenv("CXX", words)
    path = loader.find_library(isa_named("generic"))
    assert path is not None
    assert path.parent == shipped
    with caplog.at_level(logging.WARNING):
        assert loader.load_library("generic") is not None
    assert not caplog.records
    assert not list(loader.cache_directory().glob("*.so"))


@needs_compiler
@pytest.mark.parametrize("other", ["an option", "a source", "the instruction set", "the architecture"])
def test_what_a_wheel_brings_is_left_where_it_behaves_otherwise(
    tmp_path: Path, shipped: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/compiler -ffast-math" if other == "an option" else "/nonexistent/compiler")
    if other == "a source":
        sources = Path(shutil.copytree(toolchain.SOURCES, tmp_path / "src"))
        (sources / "api.h").write_text("// changed\n")
        monkeypatch.setattr(toolchain, "SOURCES", sources)
    if other == "the architecture":
        monkeypatch.setattr(toolchain, "architecture", lambda: "riscv64")
    assert loader.find_library(isa_named("avx512" if other == "the instruction set" else "generic")) is None


@pytest.mark.parametrize(
    ("target", "sets"),
    [
        ("x86_64", {"amx", "avx512bf16", "zen4", "avx512", "avxvnni", "avx2", "generic"}),
        ("aarch64", {"neon-bf16", "neon-dot", "neon", "generic"}),
        ("riscv64", {"generic"}),
    ],
)
def test_a_wheel_gets_every_set_of_its_architecture_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, sets: set[str]
) -> None:
    monkeypatch.setattr(toolchain, "SHIPPED", tmp_path / "compiled")
    monkeypatch.setenv("CXX", compiler(tmp_path, ': > "$last"', "echo 1"))
    toolchain.SHIPPED.mkdir()
    (toolchain.SHIPPED / "native-avx2-stale.so").write_text("")
    for _ in range(2):  # what is there is not compiled again
        made = toolchain.compile_all(toolchain.SHIPPED, target)
        assert sorted(made) == sorted(toolchain.SHIPPED.iterdir())
        assert len(made) == builds(tmp_path) == len(sets)
    # Somebody's machine of that architecture, which has no compiler.
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    monkeypatch.setattr(toolchain, "architecture", lambda: target)
    monkeypatch.setattr("headstart.backends.native.isa.architecture", lambda: target)
    assert {isa.name for isa in INSTRUCTION_SETS if loader.find_library(isa) is not None} == sets


def test_a_wheel_is_refused_what_only_its_builder_would_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, reason in (("true -march=native", "option -march=native"), ("/nonexistent", "no C.. compiler")):
        monkeypatch.setenv("CXX", words)
        with pytest.raises(ConfigError, match=reason):
            toolchain.compile_all(tmp_path / "compiled", "x86_64")
    assert not (tmp_path / "compiled").exists()


@needs_compiler
def test_no_openmp_runtime_is_linked(compiled: Path) -> None:
    """The one that PyTorch has loaded is taken, whatever its file is called."""
    if "clang" in subprocess.run([*toolchain._words(), "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("Clang's code needs a runtime of its own")
    assert b"omp_get_thread_num" in compiled.read_bytes()
    assert b"libgomp.so" not in compiled.read_bytes()


def test_building_a_wheel_needs_nothing_but_python() -> None:
    call = f"import sys; sys.path.insert(0, {str(Path(toolchain.__file__).parents[3])!r}); "
    call += "from headstart.backends.native import toolchain"
    subprocess.run([sys.executable, "-I", "-S", "-c", call], check=True)


def test_what_is_compiled_ahead_needs_no_such_processor_and_is_for_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.backends.native.loader.cpu_flags", frozenset)
    monkeypatch.setenv("CXX", compiler(tmp_path, 'umask 022; : > "$last"', "echo 1"))
    for isa in INSTRUCTION_SETS:
        path = loader.compile_library(isa)
        assert path == loader.find_library(isa)
        assert path.stat().st_mode & 0o444 == 0o444
    assert builds(tmp_path) == len(INSTRUCTION_SETS)


@pytest.mark.thorough
@needs_compiler
def test_a_killed_compilation_leaves_nothing_for_good(
    tmp_path: Path, copying: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, 'echo half > "$last"; kill -9 $PPID'))
    call = "from headstart.backends.native.loader import load_library; load_library('generic')"
    assert subprocess.run([sys.executable, "-c", call], check=False).returncode == -9
    assert builds(tmp_path) == 1
    monkeypatch.setenv("CXX", compiler(tmp_path, copying))
    assert loader.load_library("generic") is not None
    assert {path.suffix for path in loader.cache_directory().iterdir()} == {".lock", ".so", ".sha256"}


def test_switched_off_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_NATIVE", "0")
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    assert loader.load_library() is None


def test_an_unknown_name_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HEADSTART_NATIVE", "sse9")
    with caplog.at_level(logging.WARNING):
        assert loader.load_library() is None
        assert loader.load_library() is None
    (record,) = caplog.records
    assert "sse9" in record.getMessage()


def test_processor_that_lacks_everything(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("headstart.backends.native.loader.cpu_flags", frozenset)
    with caplog.at_level(logging.WARNING):
        assert [isa.name for isa in loader.usable_sets()] == ["generic"]
        assert not caplog.records
        assert loader.load_library("avx2") is None
    assert "this processor lacks avx2" in caplog.text


@needs_compiler
def test_tiles_that_the_system_keeps_are_said_to_be_missing(
    copying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, copying))
    monkeypatch.setattr(loader, "Library", lambda *_: SimpleNamespace(enable=lambda: 0))
    with caplog.at_level(logging.WARNING):
        assert loader.load_library("generic") is None
        assert loader.load_library("generic") is None
    assert caplog.text.count("keeps the tiles of generic from this process") == 1


def test_a_compiler_for_other_processors_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "echo 'unknown option: neon' >&2; exit 1"))
    monkeypatch.setattr(toolchain, "architecture", lambda: "x86_64")
    with pytest.raises(ConfigError, match=r"neon is for aarch64 processors, and .*; name a compiler that does in CXX"):
        loader.compile_library(isa_named("neon"))
    with pytest.raises(ConfigError, match="unknown option"):
        loader.compile_library(isa_named("generic"))


def test_options_of_cxx_have_the_last_word() -> None:
    command = toolchain.command(["env", "g++", "-O1", "-isystem", "x"], isa_named("generic"), Path("y"))
    assert command[:2] == ["env", "g++"]
    assert command.index("-O1") > command.index("-O3")
    assert command[command.index("-isystem") + 1] == "x"


def test_options_that_only_gcc_has_are_given_to_gcc_alone(tmp_path: Path) -> None:
    isa = isa_named("generic")
    for version, given in (("echo 'g++ 12'", True), ("echo 'Apple clang version 15'", False)):
        words = [compiler(tmp_path / version[6:7], "exit 1", version)]
        assert ("-fno-gnu-unique" in toolchain.command(words, isa, Path("y"))) is given


def test_sets_of_other_architectures_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "architecture", lambda: "aarch64")
    monkeypatch.setattr(loader, "cpu_flags", lambda: frozenset({"asimd", "asimddp", "avx2", "fma", "f16c"}))
    assert [isa.name for isa in loader.usable_sets()] == ["neon-dot", "neon", "generic"]
    assert not loader.usable_sets("avx2")
    monkeypatch.setattr(loader, "architecture", lambda: "riscv64")
    assert [isa.name for isa in loader.usable_sets()] == ["generic"]


@needs_compiler
def test_other_sources_or_flags_are_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Path(shutil.copytree(toolchain.SOURCES, tmp_path / "src"))
    monkeypatch.setattr(toolchain, "SOURCES", sources)
    # An empty file is no library, but it is built, and built again only where something changed.
    monkeypatch.setenv("CXX", compiler(tmp_path, ': > "$last"'))
    for change in ("", "", "// changed\n"):
        with (sources / "api.cpp").open("a") as source:
            source.write(change)
        loader.forget_loaded()
        assert loader.load_library("generic") is None
    assert builds(tmp_path) == 2
    assert len(list(loader.cache_directory().glob("*.so"))) == 2


def test_sources_that_change_while_they_are_compiled_are_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    shutil.copytree(toolchain.SOURCES, sources)
    monkeypatch.setattr(toolchain, "SOURCES", sources)
    api = sources / "api.cpp"
    once = f'[ -e {tmp_path}/changed ] || {{ echo "//" >> {api}; touch {tmp_path}/changed; }}; cp {api} "$last"'
    monkeypatch.setenv("CXX", compiler(tmp_path / "compilers", once))
    path = loader.compile_library(isa_named("generic"))
    assert path.read_text() == api.read_text()
    assert builds(tmp_path / "compilers") == 2
    assert [each.name for each in path.parent.glob("*.so")] == [path.name]


def test_cache_directory_follows_the_environment(tmp_path: Path) -> None:
    assert loader.cache_directory() == Path(os.environ["XDG_CACHE_HOME"]) / "headstart"
