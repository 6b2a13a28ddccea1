"""Writes the tables of docs/scale.md from benchmarks/results and from the demand below: python docs/draw_scale.py"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart_server.replies import event

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE = DOCS / "scale.md"

SERVERS = {
    "AMX, bf16": "2026-11-25-serve-amx",
    "AMD, bf16": "2026-11-24-serve-sixteen-rounds-bf16-avx512bf16",
    "AMD, int4": "2026-11-24-serve-sixteen-rounds-int4-avx512bf16",
    "Zen 4, bf16": "2026-11-24-serve-16-zen4-bf16",
    "Zen 4, int4": "2026-11-24-serve-16-zen4-int4",
}
"""Of each machine and precision the newest sitting of ``headstart bench serve`` with 1, 4 and 16 users."""
WEIGHTS = "2026-11-25-peers-amx"
"""Where the default model's bytes stand."""
AUTO, OFF = "auto", "off"


@dataclass(frozen=True)
class Demand:
    """What is asked for, in round numbers; put in your own."""

    people: int = 1_000_000
    answers: float = 10
    """Of each person a day."""
    answer_tokens: int = 300
    peak: float = 2.5
    """The busiest hour / the mean."""
    use: float = 0.7
    """Share of a replica's measured speed that is planned with."""
    spare: float = 0.1
    """Replicas more than needed: for those that end, and for updates."""

    @property
    def mean(self) -> float:
        """Output tokens per second."""
        return self.people * self.answers * self.answer_tokens / 86_400

    @property
    def peak_tokens(self) -> float:
        return self.mean * self.peak


@dataclass(frozen=True)
class Point:
    """One load of one sitting."""

    users: int
    cores: int
    speed: float
    """Tokens per second of all users, with speculation."""
    plain: float
    round_tokens: float

    def core_hours(self, speed: float) -> float:
        """Of a million tokens at a speed of this machine."""
        return self.cores * 1e6 / (speed * 3600)

    def replicas(self, demand: Demand) -> int:
        return math.ceil(demand.peak_tokens / (self.speed * demand.use) * (1 + demand.spare))


def points(name: str) -> list[Point]:
    """The loads of a sitting, fewest users first."""
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    by_mode: dict[str, dict[int, Any]] = {AUTO: {}, OFF: {}}
    for each in found["summaries"]:
        by_mode[each["mode"]][each["load"]["users"]] = each
    cores = found["provenance"]["cores"]
    return [
        Point(
            users, cores, each["tokens_per_second"], by_mode[OFF][users]["tokens_per_second"], each["tokens_per_round"]
        )
        for users, each in sorted(by_mode[AUTO].items())
    ]


def costs() -> str:
    """Core-hours of a million tokens."""
    rows = [
        "| machine | users of a replica | tokens/s, speculation | plain | core-hours a million tokens, speculation "
        "| plain |",
        "|---|---|---|---|---|---|",
    ]
    for machine, name in SERVERS.items():
        for each in points(name):
            rows.append(
                f"| {machine} | {each.users} | {each.speed:.0f} | {each.plain:.0f} | {each.core_hours(each.speed):.2f} "
                f"| {each.core_hours(each.plain):.2f} |"
            )
    return "\n".join(rows)


def fleets(demand: Demand) -> str:
    """Full replicas and their cores at the peak."""
    rows = ["| machine | users of a replica | replicas | cores | users at once |", "|---|---|---|---|---|"]
    for machine, name in SERVERS.items():
        full = points(name)[-1]
        replicas = full.replicas(demand)
        rows.append(
            f"| {machine} | {full.users} | {replicas:,} | {replicas * full.cores:,} | {replicas * full.users:,} |"
        )
    return "\n".join(rows)


def event_bytes() -> int:
    """Of one chunk of a chat's stream that carries four characters."""
    delta = {"role": "assistant", "content": "four"}
    chunk = {
        "id": "chatcmpl-" + "0" * 24, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "smollm2",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}],
    }  # fmt: skip
    return len(event(chunk))


def figures(demand: Demand) -> str:
    """What does not depend on the machine."""
    weights = json.loads((RESULTS / f"{WEIGHTS}.json").read_text(encoding="utf-8"))["model"]["weight_bytes"]
    each = event_bytes()
    begun, sent = demand.peak_tokens / demand.answer_tokens, each * demand.peak_tokens * 8 / 1e9
    rows = [
        "| figure | formula | value |",
        "|---|---|---|",
        f"| output, mean | people × answers × tokens / 86,400 s | {demand.mean:,.0f} tokens/s |",
        f"| output, peak | × {demand.peak:g} | {demand.peak_tokens:,.0f} tokens/s |",
        f"| answers begun, peak | peak / {demand.answer_tokens} | {begun:,.0f} a second |",
        f"| network, peak, a chunk for each token | {each} bytes a chunk × peak | {sent:.2f} Gbit/s |",
        f"| memory of a replica | weights + cache + 1 GiB for the process | {weights / 2**30 + 2:.2f} GiB |",
    ]
    return "\n".join(rows)


def tokens_read(turns: int, asked: int, answered: int, kept: float) -> float:
    """Prompt tokens that a chat's turns read; ``kept``: share of the turns that find what came before."""
    total = 0.0
    for turn in range(turns):
        before = turn * (asked + answered)
        total += asked + before * (1 - kept if turn else 1)
    return total


def affinity() -> str:
    """Prompt tokens of a chat of five turns, by routing."""
    turns, asked, answered = 5, 50, 200
    best = tokens_read(turns, asked, answered, 1)
    rows = ["| replicas | any replica: tokens read | by prefix | ratio |", "|---|---|---|---|"]
    for replicas in (2, 8, 64):
        any_ = tokens_read(turns, asked, answered, 1 / replicas)
        rows.append(f"| {replicas} | {any_:,.0f} | {best:,.0f} | {any_ / best:.1f} |")
    return "\n".join(rows)


def written(text: str) -> str:
    """The page with its tables anew."""
    demand = Demand()
    tables = {"costs": costs(), "fleets": fleets(demand), "figures": figures(demand), "affinity": affinity()}
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name}: made by draw_scale\.py -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = mark.subn(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text)
        if count != 1:
            raise ValueError(f"docs/scale.md has {count} places for the table {name}; it needs one.")
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
