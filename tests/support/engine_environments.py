"""Environments of the programs that Headstart is tried in, under and beside, kept in the user's cache directory.

python tests/support/engine_environments.py     # makes them: several GB, once
"""

from __future__ import annotations

import json
import os
import site
import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headstart_lab.programs.peers.environments import PEERS, Environment

ROOT = Path(__file__).parents[2]

VLLM = PEERS["vllm"]
# SGLang's own requirements are CUDA's. These let its code, and SpecForge's, be imported; its kernels are missing.
SGLANG = Environment(
    "sglang",
    (
        "torch==2.13.0", "transformers==5.19.0", "compressed-tensors==0.18.0", "xgrammar==0.2.7",
        "apache-tvm-ffi==0.1.11", "mistral_common", "sentencepiece", "tiktoken", "llguidance", "gguf", "orjson",
        "pyzmq", "psutil", "fastapi", "uvicorn", "uvloop", "aiohttp", "requests", "msgspec", "pybase64", "pillow",
        "einops", "interegular", "partial_json_parser", "prometheus-client", "python-multipart", "setproctitle",
        "ninja", "scipy", "IPython", "openai", "openai-harmony", "anthropic", "blobfile", "distro", "easydict",
        "watchfiles", "xxhash", "zstandard", "dill",
    ),
    alone=("sglang==0.5.23", "specforge==0.2.0"),
)  # fmt: skip


class Beside(Environment):
    """Packages beside those of this environment, which stays as it is."""

    def install(self) -> None:
        """As ``Environment.install``."""
        if self.installed:
            return
        venv.create(self.directory, with_pip=True, clear=True)
        (own,) = self.directory.glob("lib/python*/site-packages")
        (own / "beside.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
        self._pip("install", *self._pins(), *self.requirements)
        self._mark.touch()

    def _pins(self) -> tuple[str, ...]:
        return ("-c", str(ROOT / "constraints.txt"))


class Instead(Beside):
    """Packages of other versions than this environment's, which they stand before."""

    def _pins(self) -> tuple[str, ...]:
        return ()


# Headstart runs inside Ray, with the packages that it has here.
RAY = Beside("ray", ("ray[data,serve]==2.60.0",))
# The oldest that the extra allows, and the newest that was out when this was written.
TRANSFORMERS = tuple(Instead(f"transformers-{each}", (f"transformers=={each}",)) for each in ("5.14.0", "5.24.0"))
GUIDELLM = Environment("guidellm", ("guidellm==0.8.1",))
AIPERF = Environment("aiperf", ("aiperf==0.13.0",))
OPENVINO, LLAMA_SERVER, LLAMA_CPP = (PEERS[name] for name in ("openvino", "llama-cpp-wheel", "llama-cpp"))
ENGINES = (VLLM, SGLANG, RAY, GUIDELLM, AIPERF, OPENVINO, LLAMA_SERVER, LLAMA_CPP, *TRANSFORMERS)


def needs(engine: Environment) -> pytest.MarkDecorator:
    """Skips a test, and says why, where the engine's environment was not made."""
    return pytest.mark.skipif(
        not engine.installed, reason=f"the environment of {engine.name} is not there: make test-engines makes it"
    )


def run_in(engine: Environment, program: Path, arguments: Sequence[object], work: Path, **variables: str) -> Any:
    """What a program prints last, as JSON, run by the engine's Python with Headstart's source beside it."""
    log = work / f"{program.stem}.log"
    sources = f"{work}:{ROOT / 'src'}:{Path(__file__).parent}"
    environment = os.environ | {"PYTHONPATH": sources, "VLLM_CPU_KVCACHE_SPACE": "1"} | variables
    with log.open("w", encoding="utf-8") as errors:
        done = subprocess.run(
            [str(engine.python), str(program), *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=errors, env=environment, text=True, check=False, timeout=900,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text(encoding="utf-8")[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    for each in ENGINES:
        each.install()
        print(f"{each.name}: {each.directory}")
