"""Servers that ``compare_servers.py --start`` starts: the same model file, as many threads, room for as many requests.

    python -m headstart_lab.programs.peers.servers vllm-eagle3  # starts one by itself, and says where it listens

Peers run in environments of their own (``environments.py``), each with the settings that it has by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.head_files.shipped import TargetIdentity, shipped_heads, target_shape
from headstart.drafting.heads.tables import TargetTables
from headstart.errors import HeadstartError
from headstart.loading.describing import describe
from headstart.models.aliases import DEFAULT_MODEL
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from headstart.text.tokenizer import Tokenizer
from headstart_lab.programs.peers.environments import CACHE, PEERS, WORKERS
from headstart_train.files.heads import export_head
from headstart_train.files.models import save_model
from headstart_train.files.tokenizers import save_tokenizer

SOURCES = Path(__file__).parents[3]
PATIENCE = 900
"""Seconds until a server answers: vLLM compiles its pass first."""
PARTING = 30
"""Seconds until a server that was asked to end is ended."""
GUESSES = 3
"""Of vLLM's chains, as in the worker of single requests."""


class StartError(RuntimeError):
    """A server did not start; the message says why."""


@dataclass(frozen=True)
class Room:
    """What all servers get alike."""

    model: str = DEFAULT_MODEL
    threads: int = field(default_factory=torch.get_num_threads)
    users: int = 64
    """Most requests in a batch."""
    max_context: int = 2048
    """Most tokens of a request."""
    cache_tokens: int = 65536
    """Of all requests together."""

    @cached_property
    def files(self) -> Files:
        return Files(self.model)

    @property
    def cache_gib(self) -> int:
        """The same in whole GiB, at two bytes a number."""
        config = self.files.config
        each = 4 * config.num_layers * config.num_kv_heads * config.head_dim
        return max(1, -(-self.cache_tokens * each // 2**30))


class Files:
    """The model in the forms that servers read; what is derived is kept in the cache directory."""

    def __init__(self, model: str) -> None:
        self._checkpoint = open_checkpoint(model)
        self.path = self._checkpoint.path
        self.config = describe(self._checkpoint).config
        self._kept = CACHE / "models" / f"{self.path.stem}-{self._checkpoint.digest()[:12]}"

    @property
    def folder(self) -> Path:
        """The same weights in bf16, as Hugging Face's libraries read them."""
        folder = self._kept / "bf16"
        if not (folder / "config.json").exists():
            save_tokenizer(self._checkpoint, folder)
            save_model(*load_decoder(self._checkpoint, torch.float32), folder, dtype=torch.bfloat16)
        return folder

    @property
    def eagle3(self) -> Path:
        """The EAGLE-3 head that comes with Headstart for this model, as ``headstart export --to speculators`` writes.

        Raises:
            StartError: there is none.
        """
        fingerprint = Tokenizer.from_checkpoint(self._checkpoint).fingerprint
        identity = TargetIdentity(target_shape(self.config), self._checkpoint.digest, fingerprint)
        found = shipped_heads(identity).by_kind.get("eagle3")
        if found is None:
            raise StartError(f"no EAGLE-3 head comes with Headstart for {self.path.name}.")
        folder = self._kept / "eagle3-speculators"
        if not (folder / "config.json").exists():
            _, weights = load_decoder(self._checkpoint, torch.float32)
            tables = TargetTables(weights.embedding, weights.head.weight)
            export_head(load_head(found.directory, self.config), "speculators", folder, tables, str(self.folder))
        return folder


@dataclass(frozen=True)
class Command:
    """A program and its environment."""

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def headstart(*more: str) -> Callable[[Room, int], Command]:
    def command(room: Room, port: int) -> Command:
        words = [
            *(sys.executable, "-m", "headstart", "serve", "--model", room.model, "--port", str(port)),
            *("--batch-size", str(room.users), "--max-waiting", str(room.users)),
            *("--max-context", str(room.max_context), "--cache-tokens", str(room.cache_tokens)),
            *more,
        ]
        path = os.pathsep.join(filter(None, (str(SOURCES), os.environ.get("PYTHONPATH"))))
        return Command(words, {"PYTHONPATH": path, "OMP_NUM_THREADS": str(room.threads)})

    return command


def vllm(room: Room, port: int) -> Command:
    # ``vllm serve`` looks for a package of that name, and the one for processors has another.
    words = [
        *(str(PEERS["vllm"].python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(room.files.folder), "--served-model-name", room.files.path.stem, "--dtype", "bfloat16"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-num-seqs", str(room.users), "--max-model-len", str(room.max_context)),
    ]
    cores = sorted(os.sched_getaffinity(0))[: room.threads]
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": str(room.cache_gib),
        # Left to itself it keeps a core for its scheduler, and computes on one of two.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Command(words, variables)


def vllm_eagle3(room: Room, port: int) -> Command:
    return _speculating(room, port, {"method": "eagle3", "model": str(room.files.eagle3)})


def vllm_ngram(room: Room, port: int) -> Command:
    return _speculating(room, port, {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4})


def _speculating(room: Room, port: int, how: dict[str, str | int]) -> Command:
    plain = vllm(room, port)
    config = json.dumps(how | {"num_speculative_tokens": GUESSES})
    return Command([*plain.words, "--speculative-config", config], plain.variables)


def llama_server(room: Room, port: int) -> Command:
    words = _worker("llama-cpp-wheel", "llama_server.py", room, port)
    return Command([*words, "--context", str(room.cache_tokens)])


def openvino(room: Room, port: int) -> Command:
    words = _worker("openvino", "openvino_server.py", room, port)
    return Command([*words, "--cache-gib", str(room.cache_gib)])


def _worker(peer: str, program: str, room: Room, port: int) -> list[str]:
    given = {"model": room.files.path, "port": port, "threads": room.threads, "users": room.users}
    options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    return [str(PEERS[peer].python), str(WORKERS / program), *options]


@dataclass(frozen=True)
class Startable:
    command: Callable[[Room, int], Command]
    peer: str | None = None
    """Whose environment it runs in."""


SERVERS = {
    "headstart": Startable(headstart()),
    "headstart-bf16": Startable(headstart("--precision", "bf16")),
    "headstart-int8-fast": Startable(headstart("--precision", "int8-fast")),
    "headstart-plain": Startable(headstart("--drafter", "none")),
    "vllm": Startable(vllm, "vllm"),
    "vllm-eagle3": Startable(vllm_eagle3, "vllm-eagle3"),
    "vllm-ngram": Startable(vllm_ngram, "vllm"),
    "llama-server": Startable(llama_server, "llama-cpp-wheel"),
    "openvino": Startable(openvino, "openvino"),
}


@contextmanager
def started(names: Sequence[str], room: Room, logs: Path) -> Iterator[dict[str, str]]:
    """Servers that answer, by name their URL; they end with the context.

    They start one after the other, so that none measures or compiles while another does.

    Args:
        names: of ``SERVERS``.
        logs: a directory for what they print.

    Raises:
        StartError: one cannot be installed, or does not start.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as running:
        urls = {}
        for name in names:
            server = SERVERS[name]
            if server.peer is not None:
                try:
                    PEERS[server.peer].install()
                except subprocess.CalledProcessError as error:
                    raise StartError(f"the environment of {name} could not be made: {error}.") from error
            print(f"Starting {name} ...", file=sys.stderr)
            port = free_port()
            running.enter_context(process(name, server.command(room, port), port, logs / f"{name}.log"))
            urls[name] = f"http://127.0.0.1:{port}"
        yield urls


@contextmanager
def process(name: str, command: Command, port: int, log: Path) -> Iterator[None]:
    """A server's process, and those that it starts, from its first answer to the end of the context.

    Raises:
        StartError: it ended before, or did not answer in time; with the end of what it printed.
    """
    with log.open("w", encoding="utf-8") as file:
        environment = os.environ | command.variables
        server = subprocess.Popen(
            command.words, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    try:
        end = time.monotonic() + PATIENCE
        while not answers(port):
            if server.poll() is not None:
                raise StartError(f"{name} ended with status {server.returncode}; {log} ends so:\n{_tail(log)}")
            if time.monotonic() > end:
                raise StartError(f"{name} did not answer within {PATIENCE} seconds; {log} ends so:\n{_tail(log)}")
            time.sleep(0.2)
        yield
    finally:
        try:
            server.terminate()
            with suppress(subprocess.TimeoutExpired):
                server.wait(PARTING)
        finally:
            # What it started and left behind; and at once, where a second signal ends the wait.
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def answers(port: int) -> bool:
    """Whether a server says which models it has."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as reply:
            return bool(json.load(reply)["data"])
    except (OSError, ValueError, LookupError):
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", choices=SERVERS)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--users", type=int, default=64, help="most requests in a batch")
    options = parser.parse_args()
    # Ending it ends the server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        suppress(KeyboardInterrupt),
        started([options.server], Room(options.model, users=options.users), CACHE) as urls,
    ):
        print(urls[options.server], flush=True)
        signal.pause()


if __name__ == "__main__":
    try:
        main()
    except (StartError, HeadstartError) as error:
        sys.exit(f"Error: {error}")
