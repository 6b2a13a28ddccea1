"""Servers beside each other under the same load: so many users at once, the same prompts, as many tokens.

    python -m headstart_lab.programs.peers.compare_servers --start headstart,vllm,vllm-eagle3,llama-server,openvino
    python -m headstart_lab.programs.peers.compare_servers a=http://host:8000 b=http://host:8001 --users 16,64 \\
        --prompts FILE.jsonl

``--start`` starts servers of one model file and ends them afterwards (``servers.py``); others run already. Each has as
many threads as it would have alone, and rests while others are asked. A user asks
again when answered (closed loop). Under each number of users the servers take turns, and the order rotates from one
repeat to the next, so that what else the machine does hits all alike: trust the ratios. Answers are greedy and go on
past any end (``ignore_eos``), so that all write as many tokens. No server is asked anything twice, for one that
remembers its answers would copy them: name a file with enough prompts. A few questions at first are not counted.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from headstart.errors import HeadstartError
from headstart.models.aliases import DEFAULT_MODEL
from headstart_lab.bench.prompts import read_prompts
from headstart_lab.programs.peers.servers import SERVERS, Room, StartError, started
from headstart_lab.provenance import finished, provenance

TIMEOUT = 600
"""Seconds that a server has for one answer."""
WARM_UP = 4
"""Questions to each server that are not counted."""
TOKENS_EACH = 1024
"""Of a started server's cache, for each user."""


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server that runs already."""

    name: str
    url: str
    model: str
    """As it calls the model itself."""

    @classmethod
    def of(cls, text: str) -> Server:
        """From ``name=URL``.

        Raises:
            ValueError: it is not written so, or nobody answers there.
        """
        name, equals, url = text.partition("=")
        if not (name and equals and url):
            raise ValueError(f"server {text!r} is not written as name=URL.")
        try:
            with urllib.request.urlopen(f"{url.rstrip('/')}/v1/models", timeout=TIMEOUT) as reply:
                model = json.load(reply)["data"][0]["id"]
        except (OSError, ValueError, LookupError) as error:
            raise ValueError(f"server {name} does not say at {url} which model it has ({error}).") from error
        return cls(name, url.rstrip("/"), model)

    def answer(self, prompt: str, tokens: int) -> tuple[int, float]:
        """Tokens that were written, and seconds until they were all there.

        Raises:
            OSError: the server refused or left.
        """
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        body = json.dumps(request).encode()
        headers = {"Content-Type": "application/json"}
        start = time.perf_counter()
        asked = urllib.request.Request(f"{self.url}/v1/chat/completions", body, headers)
        with urllib.request.urlopen(asked, timeout=TIMEOUT) as reply:
            usage = json.load(reply)["usage"]
        return int(usage["completion_tokens"]), time.perf_counter() - start


@dataclass(frozen=True)
class Load:
    """What one server did for so many users at once."""

    server: str
    users: int
    repeat: int
    tokens: int
    seconds: float
    """From the first question to the last answer."""
    latency: float
    """Seconds for an answer, the median."""

    @property
    def speed(self) -> float:
        """Tokens a second, of all users together."""
        return self.tokens / self.seconds


def measure(server: Server, prompts: Sequence[str], users: int, tokens: int, repeat: int) -> Load:
    """Have all prompts answered, by ``users`` who ask at once."""
    start = time.perf_counter()
    with ThreadPoolExecutor(users) as pool:
        answers = list(pool.map(lambda prompt: server.answer(prompt, tokens), prompts))
    seconds = time.perf_counter() - start
    return Load(server.name, users, repeat, sum(count for count, _ in answers), seconds, median(s for _, s in answers))


@dataclass(frozen=True)
class Questions:
    """What all servers are asked, nothing twice."""

    first: list[str]
    """Those that are not counted."""
    of_load: dict[int, list[list[str]]]
    """Number of users -> what they ask in each repeat."""

    @classmethod
    def dealt(cls, prompts: Sequence[str], users: Sequence[int], each: int, least: int, repeats: int) -> Questions:
        """``each`` of every user, and at least ``least`` under each load.

        Raises:
            ValueError: there are too few prompts.
        """
        counts = {number: max(number * each, least) for number in users}
        needed = WARM_UP + repeats * sum(counts.values())
        if needed > len(prompts):
            raise ValueError(
                f"these loads take {needed} prompts, and there are {len(prompts)}; name a file with more by --prompts, "
                "or lower --repeats, --each or --users."
            )
        fresh = iter(prompts)
        first = list(islice(fresh, WARM_UP))
        return cls(first, {n: [list(islice(fresh, count)) for _ in range(repeats)] for n, count in counts.items()})


def sit(servers: Sequence[Server], questions: Questions, tokens: int) -> list[Load]:
    """All servers under all loads."""
    for server in servers:
        measure(server, questions.first, WARM_UP, tokens, 0)
    loads = []
    for users, repeats in questions.of_load.items():
        for repeat, asked in enumerate(repeats):
            turn = repeat % len(servers)
            for server in (*servers[turn:], *servers[:turn]):
                loads.append(measure(server, asked, users, tokens, repeat))
                print(f"{users} users, {server.name}: {loads[-1].speed:.1f} tokens/s", file=sys.stderr)
    return loads


def table(servers: Sequence[Server], loads: Sequence[Load]) -> str:
    """Tokens a second by users and server, medians over repeats, and the first server's over them."""
    lines = [f"{'users':>5}  " + "  ".join(f"{server.name:>24}" for server in servers)]
    for users in dict.fromkeys(load.users for load in loads):
        speeds = [median(load.speed for load in loads if (load.server, load.users) == (s.name, users)) for s in servers]
        cells = [f"{speed:9.1f} (first is {speeds[0] / speed:5.2f} x)" for speed in speeds[1:]]
        lines.append("  ".join((f"{users:>5}", f"{speeds[0]:>24.1f}", *(f"{cell:>24}" for cell in cells))))
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="NAME=URL", help="servers that run already")
    parser.add_argument(
        "--start", default="", metavar="NAMES", help=f"servers to start, with commas: {', '.join(SERVERS)}"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="of the servers that are started: a GGUF file or alias")
    parser.add_argument("--threads", type=int, help="of each of these; left out: PyTorch's number")
    parser.add_argument("--users", default="1,4", help="numbers of users, with commas")
    parser.add_argument("--each", type=int, default=1, help="questions of a user under each load")
    parser.add_argument("--questions", type=int, default=4, help="questions under each load, at least")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--prompts", type=Path, help="JSONL in Spec-Bench's form; first turns are used")
    parser.add_argument("--out", type=Path, help="directory for serving.json, and for the logs of what is started")
    options = parser.parse_args(words)
    names = [name.strip() for name in options.start.split(",") if name.strip()]
    if unknown := set(names) - set(SERVERS):
        parser.error(f"there is no server {min(unknown)!r} to start; choose from {', '.join(SERVERS)}.")
    if not names and not options.servers:
        parser.error("name servers: --start NAMES, or NAME=URL.")
    try:
        users = [int(number) for number in options.users.split(",")]
        prompts = [prompt.turns[0] for prompt in read_prompts(options.prompts)]
        Random(0).shuffle(prompts)  # tasks of all kinds under every load
        questions = Questions.dealt(prompts, users, options.each, options.questions, options.repeats)
        given = [Server.of(text) for text in options.servers]
    except (ValueError, HeadstartError) as error:
        parser.error(str(error))
    settings = {name: getattr(options, name) for name in ("each", "questions", "max_tokens", "repeats")}
    room = Room(options.model, users=max(users), cache_tokens=max(users) * TOKENS_EACH)
    if options.threads is not None:
        room = replace(room, threads=options.threads)
    # Ending this ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with TemporaryDirectory() as folder, started(names, room, options.out or Path(folder)) as urls:
            servers = [*(Server.of(f"{name}={url}") for name, url in urls.items()), *given]
            where = provenance()
            loads = sit(servers, questions, options.max_tokens)
    except urllib.error.HTTPError as error:
        sys.exit(f"Error: {error.url} refused: {error.read(500).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"Error: a server left ({error}).")
    except (StartError, HeadstartError) as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(table(servers, loads))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        if names:
            settings |= {name: getattr(room, name) for name in ("threads", "users", "max_context", "cache_tokens")}
        record = {
            "provenance": finished(where),
            "servers": [asdict(server) for server in servers],
            "settings": settings,
            "loads": [asdict(load) for load in loads],
        }
        (options.out / "serving.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
