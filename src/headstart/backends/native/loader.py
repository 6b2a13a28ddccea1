"""Finds, compiles and loads the native library for this machine.

The sources ship with the package and are compiled once per machine into the user's cache directory, on first use or
ahead of it (``headstart native``). Whatever fails (no compiler, no fitting processor, a failed build) costs one log
line, and the torch path is used.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (loads the OpenMP runtime that the library then shares)

from headstart.backends.native import isa as isa_module
from headstart.backends.native.isa import InstructionSet
from headstart.backends.native.library import Library
from headstart.errors import ConfigError
from headstart.phases import phase
from headstart.processor import architecture, cpu_flags

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
"""What is compiled."""

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
# The OpenMP runtime is the one that PyTorch has loaded. Apple's compiler needs to be told twice to look for its
# directives, and comes without a runtime to link.
_OPENMP_FLAGS = (
    ("-Xpreprocessor", "-fopenmp", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-fopenmp",)
)
_GNU_FLAGS = ("-fno-gnu-unique",)  # so that a library can be unloaded; no other compiler has or needs it


def load_library(name: str | None = None) -> Library | None:
    """The library for the fastest instruction set that works here, compiled if need be; None if there is none.

    ``name`` (or else the environment variable HEADSTART_NATIVE) names one of ``isa`` instead; "0" means none.
    """
    usable = usable_sets(name)
    for isa in usable:
        library = _load(isa)
        if library is not None:
            return library
    if usable and _compiler() is None:
        _warn(f"{_no_compiler()} Using PyTorch")
    return None


def usable_sets(name: str | None = None) -> list[InstructionSet]:
    """The instruction sets that this processor has, fastest first, or the one of them that ``load_library`` would take
    for ``name``; empty, and a log line says why, if there is none.
    """
    wanted = name or os.environ.get("HEADSTART_NATIVE") or None
    if wanted == "0":
        return []
    here = (None, architecture())
    candidates = [isa for isa in isa_module.INSTRUCTION_SETS if isa.architecture in here and isa.pays()]
    if wanted is not None:
        chosen = isa_module.by_name(wanted)
        if chosen is None:
            _warn(f"HEADSTART_NATIVE={wanted} names no instruction set; using PyTorch")
            return []
        candidates = [chosen]
    usable = [isa for isa in candidates if isa.architecture in here and isa.cpu_flags <= cpu_flags()]
    if not usable:
        _warn(f"this processor lacks {' / '.join(isa.name for isa in candidates)}; using PyTorch")
    return usable


def find_library(isa: InstructionSet) -> Path | None:
    """Where the compiled library lies; None if it has to be compiled first.

    Without a compiler, what any other one has made of the same sources with the same flags is taken, the newest of it.

    Raises:
        ConfigError: the compiler does not run.
    """
    compiler = _compiler()
    name = _file_name(isa, "*" if compiler is None else _version(compiler))
    found = [path for directory in _directories() for path in directory.glob(name)]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def compile_library(isa: InstructionSet) -> Path:
    """Compile the library into the cache, on any processor, or wait for the process that does; its path.

    Raises:
        ConfigError: there is no compiler, or it fails.
        OSError: there is nowhere to write.
    """
    compiler = _compiler()
    if compiler is None:
        raise ConfigError(_no_compiler())
    directory = _writable_directory()
    target = directory / _file_name(isa, _version(compiler))
    # Always the same name, so that the next compiler writes over what a killed one has left.
    partial = directory / "native.part"
    with (directory / "native.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():  # another process was faster
            return target
        try:
            # The compiler holds the lock, too: it may outlive this process.
            _output(_command(compiler, isa, partial), pass_fds=(lock.fileno(),))
        except ConfigError as error:
            if isa.architecture in (None, architecture()):
                raise
            raise ConfigError(
                f"{isa.name} is for {isa.architecture} processors, and {compiler[0]} does not compile for them; name a "
                "compiler that does in CXX."
            ) from error
        else:
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return target


def forget_loaded() -> None:
    """Look for libraries anew at the next call, and say anew what is missing."""
    _load.cache_clear()
    _warn.cache_clear()


@cache
def _load(isa: InstructionSet) -> Library | None:
    try:
        path = find_library(isa)
        if path is None and _compiler() is None:
            return None
        if path is None:
            with phase(f"Compiling the native pass for this processor ({isa.name}), once; about a minute", rare=True):
                path = compile_library(isa)
        library = Library(ctypes.CDLL(str(path)), isa, path.name)
    except (OSError, ConfigError) as error:
        _warn(f"native {isa.name} path not available; using the next one, or PyTorch: {error}")
        return None
    return library if library.enable() else None


@cache
def _warn(sentence: str) -> None:
    """Say it once."""
    logger.warning("%s", sentence)


def _compiler_words() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _compiler() -> list[str] | None:
    """The command that compiles, as CXX names it; None where there is none."""
    words = _compiler_words()
    return None if shutil.which(words[0]) is None else words


def _command(compiler: Sequence[str], isa: InstructionSet, target: Path) -> list[str]:
    gnu = () if "clang" in _output([*compiler, "--version"]) else _GNU_FLAGS
    flags = (*CODE_FLAGS, *_LIBRARY_FLAGS, *_OPENMP_FLAGS, *gnu, *isa.compiler_flags())
    # Options that CXX brings have the last word.
    first = next((i for i, word in enumerate(compiler) if word.startswith("-")), len(compiler))
    return [*compiler[:first], *flags, *compiler[first:], str(SOURCES / "api.cpp"), "-o", str(target)]


def _no_compiler() -> str:
    return (
        f"there is no C++ compiler {_compiler_words()[0]!r} for the native pass, which is several times faster; "
        "install one, or name it in CXX."
    )


def _version(compiler: Sequence[str]) -> str:
    """Stands for a compiler in the names of what it has made."""
    return hashlib.sha256(_output([*compiler, "--version"]).encode()).hexdigest()[:12]


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


def _file_name(isa: InstructionSet, version: str) -> str:
    """The key of a library: whatever its behaviour depends on, the compiler's version last."""
    options = [word for word in _compiler_words()[1:] if word.startswith("-")]
    key = hashlib.sha256()
    for part in (*options, *CODE_FLAGS, *_LIBRARY_FLAGS, *isa.compiler_flags(), sys.platform, architecture()):
        key.update(part.encode() + b"\0")
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        key.update(source.relative_to(SOURCES).as_posix().encode() + b"\0" + source.read_bytes())
    return f"native-{isa.name}-{key.hexdigest()[:24]}-{version}.so"


def cache_directory() -> Path:
    """Where compiled libraries are kept.

    Raises:
        OSError: this user has no home folder.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _directories() -> Iterator[Path]:
    """Where libraries may lie, whether or not anything can be written there."""
    with suppress(OSError):
        yield cache_directory()
    if _is_private(directory := _temporary_directory()):
        yield directory


def _writable_directory() -> Path:
    """``cache_directory``, or where that cannot be written a folder among temporary files that is this user's alone.

    Raises:
        ConfigError: others may write there.
        OSError: neither can be written.
    """
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError:
        directory = _temporary_directory()
        directory.mkdir(mode=0o700, exist_ok=True)
        if not _is_private(directory):
            raise ConfigError(
                f"{directory} is open to other users; remove it, or name a folder in XDG_CACHE_HOME."
            ) from None
        return directory


def _temporary_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"headstart-{os.getuid()}"


def _is_private(directory: Path) -> bool:
    """Whether nobody else may have put there what is loaded and run."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
