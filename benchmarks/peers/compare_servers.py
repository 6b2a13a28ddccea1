"""Servers beside each other under the same load: so many users at once, the same prompts, as many tokens.

    headstart serve --port 8000
    vllm serve FOLDER --port 8001 --dtype bfloat16
    python benchmarks/peers/compare_servers.py headstart=http://127.0.0.1:8000 vllm=http://127.0.0.1:8001 --users 1,4,16

The servers run already, each with as many threads as it would have alone, and rest while others are asked. A user asks
again when answered (closed loop). Under each number of users the servers take turns, and the order rotates from one
repeat to the next, so that what else the machine does hits all alike: trust the ratios. Answers are greedy and go on
past any end (``ignore_eos``), so that all write as many tokens. No server is asked anything twice, for one that
remembers its answers would copy them: name a file with enough prompts. A few questions at first are not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from headstart.analysis.bench.prompts import read_prompts
from headstart.analysis.provenance import finished, provenance

TIMEOUT = 600
"""Seconds that a server has for one answer."""
WARM_UP = 4
"""Questions to each server that are not counted."""


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


def sit(
    servers: Sequence[Server],
    prompts: Sequence[str],
    users: Sequence[int],
    *,
    each: int,
    questions: int,
    tokens: int,
    repeats: int,
) -> list[Load]:
    """All servers under all loads; ``each``: questions of a user, ``questions`` at least in all.

    Raises:
        ValueError: there are not enough prompts to ask none twice.
    """
    counts = {number: max(number * each, questions) for number in users}
    needed = WARM_UP + repeats * sum(counts.values())
    if needed > len(prompts):
        raise ValueError(
            f"these loads take {needed} prompts, and there are {len(prompts)}; name a file with more by --prompts, or "
            "lower --repeats, --each or --users."
        )
    fresh = iter(prompts)
    first = list(islice(fresh, WARM_UP))
    for server in servers:
        measure(server, first, WARM_UP, tokens, 0)
    loads = []
    for number in users:
        for repeat in range(repeats):
            asked = list(islice(fresh, counts[number]))
            turn = repeat % len(servers)
            for server in (*servers[turn:], *servers[:turn]):
                loads.append(measure(server, asked, number, tokens, repeat))
                print(f"{number} users, {server.name}: {loads[-1].speed:.1f} tokens/s", file=sys.stderr)
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
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--users", default="1,4,16,64", help="numbers of users, with commas")
    parser.add_argument("--each", type=int, default=1, help="questions of a user under each load")
    parser.add_argument("--questions", type=int, default=8, help="questions under each load, at least")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--prompts", type=Path, help="JSONL in Spec-Bench's form; first turns are used")
    parser.add_argument("--out", type=Path, help="directory for serving.json")
    options = parser.parse_args(words)
    try:
        users = [int(number) for number in options.users.split(",")]
        servers = [Server.of(text) for text in options.servers]
    except ValueError as error:
        parser.error(str(error))
    prompts = [prompt.turns[0] for prompt in read_prompts(options.prompts)]
    Random(0).shuffle(prompts)  # tasks of all kinds under every load
    where = provenance()
    settings = {name: getattr(options, name) for name in ("each", "questions", "max_tokens", "repeats")}
    try:
        loads = sit(
            servers,
            prompts,
            users,
            each=options.each,
            questions=options.questions,
            tokens=options.max_tokens,
            repeats=options.repeats,
        )
    except ValueError as error:
        parser.error(str(error))
    except urllib.error.HTTPError as error:
        sys.exit(f"Error: {error.url} refused: {error.read(500).decode(errors='replace')}")
    except OSError as error:
        sys.exit(f"Error: a server left ({error}).")
    print(table(servers, loads))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        record = {
            "provenance": finished(where),
            "servers": [asdict(server) for server in servers],
            "settings": settings,
            "loads": [asdict(load) for load in loads],
        }
        (options.out / "serving.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
