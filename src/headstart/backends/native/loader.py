"""Finds, compiles and loads the native library for this machine.

A wheel brings compiled libraries. Otherwise the sources, which ship with the package, are compiled once per machine
into the user's cache directory, on first use or ahead of it (``headstart native``). Whatever fails (no compiler, no
fitting processor, a failed build) costs one log line, and the torch path is used.
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (loads the OpenMP runtime that the library takes)

from headstart.backends.native import isa as isa_module
from headstart.backends.native import toolchain
from headstart.backends.native.isa import InstructionSet
from headstart.backends.native.library import Library
from headstart.backends.native.trust import is_cut_short, is_whole, keep_digest, why_distrusted
from headstart.common.phases import phase
from headstart.common.processor import architecture, cpu_flags
from headstart.errors import ConfigError

logger = logging.getLogger(__name__)


def load_library(name: str | None = None) -> Library | None:
    """The library for the fastest instruction set that works here, compiled if need be; None if there is none.

    ``name`` (or else the environment variable HEADSTART_NATIVE) names one of ``isa`` instead; "0" means none.
    """
    usable = usable_sets(name)
    for isa in usable:
        library = _load(isa)
        if library is not None:
            return library
    if usable and toolchain.find_compiler() is None:
        _warn(f"{toolchain.no_compiler()} Using PyTorch")
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

    What a wheel has brought is taken, unless CXX brings options of its own. Without a compiler, what any other one has
    made of the same sources with the same flags is taken, the newest of it. What others may have written, or is not
    whole, is none.

    Raises:
        ConfigError: the compiler does not run.
    """
    return next(iter(_libraries(isa)), None)


def _libraries(isa: InstructionSet) -> list[Path]:
    """Those that may be loaded, the best first.

    Raises:
        ConfigError: the compiler does not run.
    """
    any_version = toolchain.file_name(isa, "*")
    # A wheel's are as trustworthy as this file, which lies beside them.
    shipped = [path for path in toolchain.SHIPPED.glob(any_version) if not is_cut_short(path)]
    if shipped:
        return shipped
    compiler = toolchain.find_compiler()
    name = any_version if compiler is None else toolchain.file_name(isa, toolchain.version_of(compiler))
    found = [path for directory in _directories() for path in directory.glob(name) if _is_sound(path)]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def compile_library(isa: InstructionSet) -> Path:
    """Compile the library into the cache, on any processor, or wait for the process that does; its path.

    Raises:
        ConfigError: there is no compiler, or it fails.
        OSError: there is nowhere to write.
    """
    compiler = toolchain.find_compiler()
    if compiler is None:
        raise ConfigError(toolchain.no_compiler())
    directory, version = _writable_directory(), toolchain.version_of(compiler)
    # Always the same name, so that the next compiler writes over what a killed one has left.
    partial = directory / f"native-{isa.name}.part"
    with (directory / f"native-{isa.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while True:
            target = directory / toolchain.file_name(isa, version)
            if _is_sound(target):  # another process was faster
                return target
            try:
                # The compiler holds the lock, too: it may outlive this process.
                toolchain.compile_to(partial, compiler, isa, pass_fds=(lock.fileno(),))
                # Sources that changed meanwhile are compiled again: a name tells what they were.
                if toolchain.file_name(isa, version) == target.name:
                    keep_digest(partial, target)
                    os.replace(partial, target)
            finally:
                partial.unlink(missing_ok=True)


def forget_loaded() -> None:
    """Look for libraries anew at the next call, and say anew what is missing."""
    _load.cache_clear()
    _warn.cache_clear()


@cache
def _load(isa: InstructionSet) -> Library | None:
    try:
        path = find_library(isa)
        if path is None and toolchain.find_compiler() is None:
            return None
        if path is None:
            path = _compile(isa)
        try:
            library = _open(path, isa)
        except OSError as error:
            if path.parent != toolchain.SHIPPED or toolchain.find_compiler() is None:
                raise
            _warn(f"{error}; compiling it anew")
            library = _open(_compile(isa), isa)
    except (OSError, ConfigError) as error:
        _warn(f"native {isa.name} path not available; using the next one, or PyTorch: {error}")
        return None
    if library.enable():
        return library
    _warn(f"the system keeps the tiles of {isa.name} from this process; using the next instruction set, or PyTorch")
    return None


def _compile(isa: InstructionSet) -> Path:
    with phase(f"Compiling the native pass for this processor ({isa.name}), once; about a minute", rare=True):
        return compile_library(isa)


def _open(path: Path, isa: InstructionSet) -> Library:
    """
    Raises:
        OSError: it is no library, or another one.
    """
    _offer_openmp()
    try:
        return Library(ctypes.CDLL(str(path)), isa, path.name)
    except AttributeError as error:
        raise OSError(f"{path} is another library: {error}") from error


def _offer_openmp() -> None:
    """Make an OpenMP runtime visible to libraries, which are linked to none. PyTorch does so with its own, unless it
    was built without one; then the system's is used."""
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        with suppress(OSError):  # the library that needs it says what is missing
            ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)


@cache
def _warn(sentence: str) -> None:
    """Say it once."""
    logger.warning("%s", sentence)


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
        directory = cache_directory().resolve()
        if _is_trusted(directory):
            yield directory
    if _is_private(directory := _temporary_directory()):
        yield directory


def _writable_directory() -> Path:
    """``cache_directory``, or where that cannot be written, or others can, a folder among temporary files that is this
    user's alone.

    Raises:
        ConfigError: others may write there, too.
        OSError: neither can be written.
    """
    with suppress(OSError):
        directory = cache_directory().resolve()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
        if _is_trusted(directory):
            return directory
    directory = _temporary_directory()
    directory.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(directory):
        raise ConfigError(f"{directory} is open to other users; remove it, or name a folder in XDG_CACHE_HOME.")
    return directory


def _is_sound(library: Path) -> bool:
    """Whether it may be loaded and run."""
    return is_whole(library) and _is_trusted(library)


def _is_trusted(path: Path) -> bool:
    """Whether nobody else may have written it; where somebody may, it is said.

    Raises:
        OSError: it is not there.
    """
    reason = why_distrusted(path)
    if reason is not None:
        _warn(
            f"{reason}, so no compiled library is taken from there, nor kept there; take that right from them, or name "
            "a folder of your own in XDG_CACHE_HOME"
        )
    return reason is None


def _temporary_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"headstart-{os.getuid()}"


def _is_private(directory: Path) -> bool:
    """Whether nobody else may have put there what is loaded and run, or may put another folder in its place."""
    try:
        found, above = directory.lstat(), directory.parent.stat()
    except OSError:
        return False
    keeps = bool(above.st_mode & stat.S_ISVTX) or not above.st_mode & 0o022
    return keeps and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
