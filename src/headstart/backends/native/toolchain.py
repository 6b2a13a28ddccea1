"""How the native sources are compiled: the compiler, its flags, and the names of what it makes.

Nothing is imported that does not come with Python: a wheel's build has nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headstart.backends.native.isa import INSTRUCTION_SETS, InstructionSet
from headstart.common.processor import architecture
from headstart.errors import ConfigError

SOURCES = Path(__file__).parent / "src"
"""What is compiled."""

SHIPPED = Path(__file__).parent / "compiled"
"""Where a wheel brings the libraries of its architecture; not there in a checkout."""

CODE_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",  # a product is fused where the source says so, nowhere else: the rows' bits depend on it
    "-fno-math-errno",
)
"""What code is made of the sources, whatever it becomes part of; an instruction set adds its own."""

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wno-sign-conversion", "-Wno-c99-extensions")
"""What the sources are free of, by GCC and Clang. Not among them: conversions of signs (sizes are ``int`` here, and
index vectors), literals of C (intrinsics make them), -Wshadow and -Wdouble-promotion (both are meant)."""

_LIBRARY_FLAGS = ("-fvisibility=hidden", "-shared", "-fPIC")
# Told as the preprocessor's business, OpenMP is compiled but no runtime is linked: the library takes the one that
# PyTorch has loaded, whatever its file is called (docs/decisions/0064).
_OPENMP_FLAGS = ("-Xpreprocessor", "-fopenmp")
_APPLE_FLAGS = ("-undefined", "dynamic_lookup")
_GNU_FLAGS = ("-fno-gnu-unique",)  # so that a library can be unloaded; no other compiler has or needs it
_CLANG_FLAGS = ("-fopenmp",)  # its code calls a runtime that PyTorch does not have on Linux


def find_compiler() -> list[str] | None:
    """The command that compiles, as CXX names it; None where there is none."""
    words = _words()
    return None if shutil.which(words[0]) is None else words


def no_compiler() -> str:
    """A sentence for where there is none."""
    return (
        f"there is no C++ compiler {_words()[0]!r} for the native pass, which is several times faster; "
        "install one, or name it in CXX."
    )


def version_of(compiler: Sequence[str]) -> str:
    """Stands for a compiler in the names of what it has made.

    Raises:
        ConfigError: it does not run.
    """
    return hashlib.sha256(_output([*compiler, "--version"]).encode()).hexdigest()[:12]


def file_name(isa: InstructionSet, version: str, target: str | None = None) -> str:
    """The key of a library: whatever its behaviour depends on, the compiler's version last.

    Args:
        target: the architecture that it is for; None: this machine's.
    """
    target = target or architecture()
    flags = (*CODE_FLAGS, *_LIBRARY_FLAGS, *_OPENMP_FLAGS, *isa.compiler_flags(target))
    key = hashlib.sha256()
    for part in (*_options(), *flags, sys.platform, target):
        key.update(part.encode() + b"\0")
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        key.update(source.relative_to(SOURCES).as_posix().encode() + b"\0" + source.read_bytes())
    return f"native-{isa.name}-{key.hexdigest()[:24]}-{version}.so"


def command(compiler: Sequence[str], isa: InstructionSet, to: Path, target: str | None = None) -> list[str]:
    """What compiles a library for ``target`` (None: this machine's architecture) into the file ``to``."""
    if sys.platform == "darwin":
        by_compiler = (*_OPENMP_FLAGS, *_APPLE_FLAGS)
    else:
        by_compiler = _CLANG_FLAGS if _is_clang(compiler) else (*_OPENMP_FLAGS, *_GNU_FLAGS)
    flags = (*CODE_FLAGS, *_LIBRARY_FLAGS, *by_compiler, *isa.compiler_flags(target))
    # Options that CXX brings have the last word.
    first = next((i for i, word in enumerate(compiler) if word.startswith("-")), len(compiler))
    return [*compiler[:first], *flags, *compiler[first:], f"-I{SOURCES}", str(SOURCES / "api.cpp"), "-o", str(to)]


def compile_to(
    to: Path, compiler: Sequence[str], isa: InstructionSet, target: str | None = None, pass_fds: Sequence[int] = ()
) -> None:
    """Compile a library for ``target`` (None: this machine's architecture) into the file ``to``; the compiler inherits
    ``pass_fds``.

    Raises:
        ConfigError: the compiler fails.
    """
    try:
        _output(command(compiler, isa, to, target), pass_fds)
    except ConfigError as error:
        if isa.architecture in (None, architecture()):
            raise
        raise ConfigError(
            f"{isa.name} is for {isa.architecture} processors, and {compiler[0]} does not compile for them; name a "
            "compiler that does in CXX."
        ) from error


def compile_all(folder: Path, target: str) -> list[Path]:
    """Compile the library of each instruction set of an architecture into ``folder``, as a wheel carries them; what
    lies there and is none of them is removed.

    Raises:
        ConfigError: there is no compiler, it fails, or CXX brings options: they would be part of the name, so that
            nobody without them would find the libraries.
    """
    compiler = find_compiler()
    if compiler is None:
        raise ConfigError(no_compiler())
    if _options():
        raise ConfigError(
            f"CXX brings the option {_options()[0]}, and a wheel is compiled without any, for every processor and "
            "user; take it out of CXX."
        )
    version = version_of(compiler)
    sets = [isa for isa in INSTRUCTION_SETS if isa.architecture in (None, target)]
    paths = [folder / file_name(isa, version, target) for isa in sets]
    folder.mkdir(parents=True, exist_ok=True)
    for path in set(folder.iterdir()) - set(paths):
        path.unlink()

    def make(isa: InstructionSet, path: Path) -> None:
        if not path.exists():
            partial = path.with_suffix(".part")
            compile_to(partial, compiler, isa, target)
            partial.replace(path)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(make, sets, paths))
    return paths


def _words() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _options() -> list[str]:
    return [word for word in _words()[1:] if word.startswith("-")]


def _is_clang(compiler: Sequence[str]) -> bool:
    return "clang" in _output([*compiler, "--version"])


def _output(command: Sequence[str], pass_fds: Sequence[int] = ()) -> str:
    """What a compiler says.

    Raises:
        ConfigError: it fails.
    """
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, errors="replace", pass_fds=pass_fds
        ).stdout
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip()[-500:]
        raise ConfigError(f"the compiler {command[0]} fails: {said or f'status {error.returncode}'}") from error
