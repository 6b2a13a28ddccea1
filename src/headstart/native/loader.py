"""Finds, compiles and loads the native library for this machine.

The sources ship with the package and are compiled once per machine into the user's cache directory. Whatever
fails (no compiler, no fitting processor, a failed build) costs one log line, and the torch path is used.
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
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (loads the OpenMP runtime that the library then shares)

from headstart.native import isa as isa_module
from headstart.native.isa import InstructionSet
from headstart.native.library import Library

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
"""What is compiled."""

_FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",  # a product is fused where the source says so, nowhere else: the rows' bits depend on it
    "-fno-math-errno",
    "-fno-gnu-unique",
    "-fvisibility=hidden",
    "-fopenmp",
    "-shared",
    "-fPIC",
)


def load_library(name: str | None = None) -> Library | None:
    """The library for the fastest instruction set that works here, compiled if need be; None if there is none.

    ``name`` (or else the environment variable HEADSTART_NATIVE) names one instruction set instead: "amx",
    "avx512", "avx2", "amx-emulated"; "0" means none.
    """
    wanted = name or os.environ.get("HEADSTART_NATIVE") or None
    if wanted == "0":
        return None
    if wanted is None:
        candidates: Sequence[InstructionSet] = isa_module.INSTRUCTION_SETS
    else:
        chosen = isa_module.by_name(wanted)
        if chosen is None:
            logger.warning("HEADSTART_NATIVE=%s names no instruction set; using PyTorch", wanted)
            return None
        candidates = (chosen,)
    usable = [isa for isa in candidates if isa.cpu_flags <= isa_module.cpu_flags()]
    if usable and _compiler() is None:
        return None
    for isa in usable:
        library = _load(isa)
        if library is not None:
            return library
    if not usable:
        logger.warning("this processor lacks %s; using PyTorch", " / ".join(isa.name for isa in candidates))
    return None


def forget_loaded() -> None:
    """Look for libraries anew at the next call."""
    _load.cache_clear()
    _compiler.cache_clear()


@cache
def _compiler() -> list[str] | None:
    """The command that compiles, as CXX names it; None, said once, where there is none."""
    command = shlex.split(os.environ.get("CXX") or "g++")
    if shutil.which(command[0]) is not None:
        return command
    logger.warning(
        "there is no C++ compiler %r for the native pass, which is several times faster; install one, or name it in "
        "CXX. Using PyTorch",
        command[0],
    )
    return None


@cache
def _load(isa: InstructionSet) -> Library | None:
    try:
        path = _build(isa)
        library = Library(ctypes.CDLL(str(path)), isa.name)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or ""
        logger.warning(
            "native %s path not available (%s); %s", isa.name, error, detail.strip()[-500:] or "using PyTorch"
        )
        return None
    return library if library.enable() else None


def cache_directory() -> Path:
    """Where compiled libraries are kept.

    Raises:
        OSError: nobody knows where this user's files are.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart"
    except RuntimeError as error:
        raise OSError(str(error)) from error


def _writable_directory() -> Path:
    """``cache_directory``, or where that cannot be written a folder among temporary files that is this user's alone.

    Raises:
        OSError: neither can be written.
    """
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except OSError:
        directory = Path(tempfile.gettempdir()) / f"headstart-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        # What lies there is loaded and run: nobody else may have put it there.
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{directory} is open to other users") from None
        return directory


def _build(isa: InstructionSet) -> Path:
    """Path of the compiled library, compiled now unless the cache has it."""
    compiler = _compiler() or []
    version = subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout
    sources = sorted(SOURCES.iterdir())
    key = hashlib.sha256()
    for part in (version, *_FLAGS, *isa.compiler_flags, *sorted(isa_module.cpu_flags())):
        key.update(part.encode() + b"\0")
    for source in sources:
        key.update(source.name.encode() + b"\0" + source.read_bytes())
    name = f"native-{isa.name}-{key.hexdigest()[:24]}.so"
    with suppress(OSError):
        if (cached := cache_directory() / name).exists():  # perhaps where nothing can be written
            return cached
    directory = _writable_directory()
    target = directory / name
    if target.exists():
        return target
    with (directory / "native.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():  # another process was faster
            return target
        descriptor, partial = tempfile.mkstemp(suffix=".so", dir=directory)
        os.close(descriptor)
        try:
            command = [*compiler, *_FLAGS, *isa.compiler_flags, str(SOURCES / "api.cpp"), "-o", partial]
            subprocess.run(command, check=True, capture_output=True, text=True)
            os.replace(partial, target)
        finally:
            Path(partial).unlink(missing_ok=True)
    return target
