"""What the build of a wheel adds to pyproject.toml: the compiled native pass (docs/decisions/0064).

HEADSTART_WHEEL=native compiles, and fails where that cannot be done; HEADSTART_WHEEL=source compiles nothing. Left out,
the pass is compiled on Linux where there is a compiler, but not while pip installs from source: the first start then
compiles the one library that the machine needs.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "src"))

from headstart.backends.native import toolchain
from headstart.common.processor import architecture, architecture_named
from headstart.errors import ConfigError

WANTED = os.environ.get("HEADSTART_WHEEL", "")
INSTALLED_BY_PIP = "PIP_BUILD_TRACKER" in os.environ
OTHER_PLATFORM = os.environ.get("_PYTHON_HOST_PLATFORM", "")  # "linux-aarch64": what Python's own cross builds set


def compiles() -> bool:
    """Whether this wheel gets libraries."""
    if WANTED in ("native", "source"):
        return WANTED == "native"
    if WANTED:
        raise SystemExit(f"HEADSTART_WHEEL={WANTED} is neither native nor source; name one of them, or leave it out.")
    return sys.platform == "linux" and not INSTALLED_BY_PIP and toolchain.find_compiler() is not None


COMPILES = compiles()


class PlatformDistribution(Distribution):
    """Has files for one platform if it has libraries, though no extension modules."""

    def has_ext_modules(self) -> bool:
        return COMPILES


class BuildWithLibraries(build_py):
    """Compiles into the build, never into the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib, *toolchain.SHIPPED.parts[-4:])
        if COMPILES:
            self._compile(folder)
            return
        for stale in folder.glob("*"):
            stale.unlink()
        if not INSTALLED_BY_PIP:
            print("This wheel carries no compiled native pass: its first start compiles it.", flush=True)
            if not WANTED and toolchain.find_compiler() is None:
                print(f"The reason: {toolchain.no_compiler()}", flush=True)

    def _compile(self, folder: Path) -> None:
        target = architecture_named(OTHER_PLATFORM.rpartition("-")[2]) or architecture()
        print(f"Compiling the native pass for {target}, each instruction set; a minute or two each ...", flush=True)
        began = time.monotonic()
        try:
            libraries = toolchain.compile_all(folder, target)
        except ConfigError as error:
            raise SystemExit(
                f"The wheel cannot carry the native pass: {error} HEADSTART_WHEEL=source makes one that "
                "compiles it on first use."
            ) from error
        print(f"{len(libraries)} libraries, compiled in {time.monotonic() - began:.0f} s", flush=True)


class PlatformWheel(bdist_wheel):
    """With libraries it is for one platform, and for any Python."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if COMPILES else (python, abi, platform)


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel})
