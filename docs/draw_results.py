"""Writes the table and the chart of each machine into docs/results.md and docs/images/, from benchmarks/results:
python docs/draw_results.py"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headstart_charts.bars import Bar, BarChart, bars_to_svg

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
PAGE, IMAGES = DOCS / "results.md", DOCS / "images"

SITTINGS = {
    "AMX": {
        "bf16": "2026-11-25-whole-file-amx-bf16",
        "int8": "2026-11-25-thirteenth-head-amx-int8",
    },
    "AMD": {
        "bf16": "2026-11-26-whole-file-bf16-avx512bf16",
        "int8": "2026-11-24-few-rows-int8-avx512bf16",
        "int4": "2026-11-26-fourteenth-head-int4-avx512bf16",
        "int4-fast": "2026-11-24-few-rows-int4-fast-avx512bf16",
    },
    "Zen 4": {
        "bf16": "2026-11-25-zen4-bf16",
        "int8": "2026-11-24-zen4-int8",
        "int4": "2026-11-25-zen4-int4",
        "int4-fast": "2026-11-25-zen4-int4-fast",
    },
    "AVX-512": {
        "bf16": "2026-11-22-averaged-head-avx512",
        "int8": "2026-11-22-int8-averaged-head-avx512",
    },
}
"""Of each machine and precision the newest sitting of ``headstart bench``."""
PLAIN, DEFAULT = "none", "auto"
HEADER = """\
| precision | turns | plain, tokens/s | best drafter, tokens/s | `auto`, tokens/s | `auto` / plain | tokens a round |
|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Contender:
    """What one drafter came to: the mean over the groups of prompts."""

    name: str
    speed: Bar
    """Tokens per second in decoding, and the least and the most of the repeats."""
    ratio: float
    """To plain decoding of the same run."""
    round_tokens: float


@dataclass(frozen=True)
class Sitting:
    precision: str
    turns: int
    plain: Contender
    best: Contender
    """The fastest drafter but the default one, which asks others."""
    auto: Contender

    @classmethod
    def read(cls, precision: str, name: str) -> Sitting:
        """From a file of ``headstart bench``."""
        report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        contenders = {each["name"]: _contender(each, precision) for each in report["contenders"]}
        plain, auto = contenders.pop(PLAIN), contenders.pop(DEFAULT)
        best = max(contenders.values(), key=lambda each: each.speed.value)
        turns = report["turns_measured"] // report["settings"]["repeats"]
        return cls(precision, turns, plain, best, auto)

    @property
    def row(self) -> str:
        cells = (
            self.precision,
            str(self.turns),
            f"{self.plain.speed.value:.0f}",
            f"{self.best.speed.value:.0f} (`{self.best.name}`)",
            f"{self.auto.speed.value:.0f}",
            f"{self.auto.ratio:.2f}",
            f"{self.auto.round_tokens:.2f}",
        )
        return f"| {' | '.join(cells)} |"


def slug(machine: str) -> str:
    """A machine's name in names of files."""
    return machine.lower().replace(" ", "-")


def machine_sittings(machine: str) -> list[Sitting]:
    """Of a machine, in the order of its table."""
    return [Sitting.read(precision, name) for precision, name in SITTINGS[machine].items()]


def table(machine: str) -> str:
    """A machine's table in Markdown."""
    return "\n".join([HEADER, *(sitting.row for sitting in machine_sittings(machine))])


def chart(machine: str) -> str:
    """A machine's chart as SVG."""
    bars = tuple(
        each.speed for sitting in machine_sittings(machine) for each in (sitting.plain, sitting.best, sitting.auto)
    )
    title = f"{machine}: SmolLM2-135M-Instruct, one sequence, greedy"
    return bars_to_svg(BarChart(title, "tokens per second; whiskers: repeats", bars, decimals=0)) + "\n"


def page(text: str) -> str:
    """The page ``text`` with each machine's table between its marks.

    Raises:
        ValueError: a machine has no marks.
    """
    for machine in SITTINGS:
        begin, end = f"<!-- {slug(machine)}: made by draw_results.py -->\n", "<!-- end -->"
        if begin not in text:
            raise ValueError(f"results.md must hold the line {begin.strip()!r}, and {end!r} after the table.")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{table(machine)}\n{end}{rest.partition(end)[2]}"
    return text


def _contender(report: dict[str, object], precision: str) -> Contender:
    mean = report["mean"]
    speed = {key: float(value) for key, value in mean["decoding"].items()}
    said = "plain" if report["name"] == PLAIN else report["name"]
    bar = Bar(f"{precision}, {said}", speed["middle"], speed["low"], speed["high"])
    return Contender(str(said), bar, mean["speedup"]["middle"], report["mean_accepted_length"])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for each in SITTINGS:
        (IMAGES / f"results-{slug(each)}.svg").write_text(chart(each), encoding="utf-8")
