"""What each part of the planner brings: the planner itself, without one of them, on recorded guesses in simulated time.

    python -m headstart_lab.programs.planner_replay record --prompts FILE.jsonl --temperature 1 --out drawn.json.gz
    python -m headstart_lab.programs.planner_replay ablate greedy.json.gz drawn.json.gz --variants relations,START=6
    python -m headstart_lab.programs.planner_replay ablate greedy.json.gz drawn.json.gz --noise 0.3 --seeds 3

A variant is a part that is left out, or a constant of ``drafting/planning/constants.py`` with another value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean

from headstart.drafting.planning import constants
from headstart.drafting.planning.allowances import Load, PlainRounds, Safeguard
from headstart.drafting.planning.guess_rates import SequenceRates
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_costs import PassCosts
from headstart.drafting.planning.round_costs import RoundCosts
from headstart.errors import ConfigError
from headstart.passes.adapters import Adapter
from headstart.passes.draft_tree import MAX_GRADES
from headstart_lab.bench.planner_parts import PARTS
from headstart_lab.programs.recorded_guesses import Recording, record, with_time_left
from headstart_lab.programs.simulated_planner import Scenario, play, share_below, speed, worst_group

_BASE = "base"
_SEEN = ("grades", "own-rates", "forgetting", "allowances", "safeguard", "min-probability")
"""Parts of ``headstart bench --cells --without`` that simulated time can see."""
_VALUES = {
    "OWN": (1, 4, 1e9),
    "OWN_WEIGHT": (1, 8),
    "START": (3, 4, 6, 8),
    "MOST": (16, 64),
    "SHARE": (0.01,),
    "LEAST_GAIN": (1, 1.01, 1.05),
    "MEMORY": (20, 80, 200),
    "MEASURED_WEIGHT": (4, 20),
    "MOST_CERTAIN": (1,),
    "LEAST_PROBABLE": (0,),
    "MOST_PROBABLE": (1,),
    "LEVELS_AHEAD": (4,),
    "PLAIN_SHARE": (0.01,),
    "PLAIN_OFTEN": (1,),
    "REDRAWN_EVERY": (1,),
    "RECENT": (3,),
}
"""Constant -> others."""


class _Unrelated(SequenceRates):
    def __getitem__(self, grade: int) -> float:
        return super().__getitem__(grade % MAX_GRADES)


class _WithoutRelations(Member):
    def own_rates(self, adapter: Adapter | None = None) -> SequenceRates:
        return _Unrelated(self.rates)


class _TriedOnce(PassCosts):
    def _is_due(self, step: int, guesses: int) -> bool:
        return False


class _WithoutTrying(RoundCosts):
    def __init__(self) -> None:
        super().__init__()
        self.passes = _TriedOnce()


class _Medians(PlainRounds):
    def add(self, load: Load, seconds: float) -> None:
        super().add(load, seconds)
        self._over_median = 1.0


class _WithoutMeans(Safeguard):
    def __init__(self) -> None:
        super().__init__()
        self.plain = _Medians()


_WITHOUT: dict[str, tuple[str, Callable[[PlannerParts], PlannerParts]]] = {
    _BASE: ("as it is", lambda parts: parts),
    "relations": ("what others guess says nothing", lambda parts: replace(parts, member=_WithoutRelations)),
    "trying": ("passes are not tried again", lambda parts: replace(parts, costs=_WithoutTrying)),
    "means": ("plain rounds take their median", lambda parts: replace(parts, safeguard=_WithoutMeans)),
    **{name: (PARTS[name].instead, PARTS[name].without) for name in _SEEN},
}


@contextmanager
def variant(name: str) -> Iterator[tuple[str, PlannerParts]]:
    """What it turns off, and the planner's parts without it; a constant is changed inside this context.

    Raises:
        ConfigError: there is no such part or constant.
    """
    constant, changed, value = name.partition("=")
    if changed and isinstance(before := getattr(constants, constant, None), (int, float)):
        setattr(constants, constant, type(before)(value))
        try:
            yield f"{before:g} before", PlannerParts()
        finally:
            setattr(constants, constant, before)
    elif name in _WITHOUT:
        off, without = _WITHOUT[name]
        yield off, without(PlannerParts())
    else:
        raise ConfigError(f"there is no {name!r}; parts are {', '.join(_WITHOUT)}, constants are written START=6.")


def scenarios(
    recordings: Sequence[Recording], rows: Sequence[float], users: Sequence[int]
) -> dict[str, tuple[Recording, Scenario]]:
    """By name: one engine for all answers, each answer the first of one, short such answers, several users."""
    found = {}
    for recording, row in product(recordings, rows):
        warm, told = f"T={recording.temperature:g} {row:g}", Scenario(row, 0.15 if row > 0.2 else 0.1)
        found[warm] = recording, told
        found[f"{warm} first"] = recording, replace(told, first=True)
        found[f"{warm} short"] = recording, replace(told, first=True, tokens=32)
        found |= {f"{warm} {count} users": (recording, replace(told, users=count)) for count in users}
    return found


def judged(found: dict[str, tuple[Recording, Scenario]], job: tuple[str, str, float, int]) -> tuple[float, ...]:
    """Speed over plain decoding, that of the worst group, and the share of answers below 0.99, of one job: a variant,
    a scenario, noise and a seed."""
    name, scenario, noise, seed = job
    recording, told = found[scenario]
    with variant(name) as (_, parts):
        said = play(recording, replace(told, noise=noise, seed=seed), parts)
    return speed(said), worst_group(said), share_below(said)


def ablate(
    names: Sequence[str], found: dict[str, tuple[Recording, Scenario]], noise: float, seeds: int, processes: int
) -> str:
    """A table, what costs most first. Speeds of variants are told in per cent of the planner's with the same seed, plus
    or minus half of what seeds differ by."""
    names = list(dict.fromkeys([_BASE, *names]))
    offs = {}
    for name in names:
        with variant(name) as (offs[name], _):
            pass
    jobs = [(name, each, noise, seed) for seed in range(seeds if noise else 1) for name in names for each in found]
    run = partial(judged, found)
    with Pool(processes) if processes > 1 else nullcontext() as pool:
        results = map(run, jobs) if pool is None else pool.imap(run, jobs)
        of = {job: next(results) for job in with_time_left(jobs, "runs")}
    table = []
    for name in names:
        changes, cells = list[float](), list[str]()
        for each in found:
            runs = [(of[job], of[_BASE, *job[1:]][0]) for job in jobs if job[:2] == (name, each)]
            own = [100 * (run[0] / base - 1) for run, base in runs]
            changes.append(fmean(own))
            spread = f" ± {(max(own) - min(own)) / 2:.1f}" if len(own) > 1 else ""
            cells.append(f"{fmean([base for _, base in runs]):.3f}" if name == _BASE else f"{changes[-1]:+.1f}{spread}")
        worst = min([result[1] for job, result in of.items() if job[0] == name])
        below = fmean([result[2] for job, result in of.items() if job[0] == name])
        line = [name, offs[name], *cells, f"{fmean(changes):+.2f}", f"{worst:.2f}", f"{below:.2f}"]
        table.append((name != _BASE, fmean(changes), "| " + " | ".join(line) + " |"))
    head = ["variant", "without", *found, "mean", "worst group", "below 0.99"]
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *(line for *_, line in sorted(table))])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    recording = modes.add_parser("record", help="decode answers plainly, and keep what drafters guess")
    recording.add_argument("--model", default="smollm2")
    recording.add_argument("--drafters", default="suffix,eagle3", help="two at most")
    recording.add_argument("--prompts", type=Path, required=True, help="in Spec-Bench's form; first turns are answered")
    recording.add_argument("--temperature", type=float, default=0.0)
    recording.add_argument("--tokens", type=int, default=96, help="of each answer")
    recording.add_argument("--answers", type=int, default=70)
    recording.add_argument("--out", type=Path, required=True)
    ablation = modes.add_parser("ablate", help="run the planner on recordings, without one part after the other")
    ablation.add_argument("recordings", type=Path, nargs="+")
    ablation.add_argument(
        "--variants",
        default=",".join([*_WITHOUT, *(f"{name}={value:g}" for name, values in _VALUES.items() for value in values)]),
    )
    ablation.add_argument("--rows", default="0.3,0.1", help="what a further row of a pass takes, in plain passes")
    ablation.add_argument("--users", default="4")
    ablation.add_argument("--noise", type=float, default=0.0, help="what disturbs passes, as a share of each")
    ablation.add_argument("--seeds", type=int, default=3, help="of the noise")
    ablation.add_argument("--processes", type=int, default=1)
    wanted = parser.parse_args(arguments)
    if wanted.mode == "record":
        drafters = wanted.drafters.split(",")
        told = wanted.model, drafters, wanted.prompts, wanted.temperature, wanted.tokens, wanted.answers
        record(*told).write(wanted.out)
        return
    found = scenarios(
        [Recording.read(each) for each in wanted.recordings],
        [float(each) for each in wanted.rows.split(",")],
        [int(each) for each in wanted.users.split(",") if each],
    )
    print(ablate(wanted.variants.split(","), found, wanted.noise, wanted.seeds, wanted.processes))


if __name__ == "__main__":
    main()
