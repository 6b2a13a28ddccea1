"""``headstart bench --cells``: every kind of load, with speculation and without."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.entrypoints.engine_options import EngineOptions
    from headstart.loading.model import Model

CELLS = "Cells"
BUDGET_MINUTES = 60.0
REPEATS = 3
"""Without a limit of time."""
_PRECISIONS = ("bf16", "int8", "int4")
"""That are measured where the native pass runs and no precision is named."""


@dataclass(frozen=True)
class CellOptions:
    """Options of ``--cells`` alone."""

    cells: Annotated[
        bool,
        typer.Option(
            "--cells",
            help="Measure every kind of load instead: numbers of users, groups of prompts, temperatures, precisions "
            "and lengths of input, with --drafters (auto) and without, in turns, for --minutes (60). The worst cell is "
            "named.",
            rich_help_panel=CELLS,
        ),
    ] = False
    users: Annotated[
        str, typer.Option(help="Requests that are decoded at a time.", rich_help_panel=CELLS, metavar="N,N,...")
    ] = "1,4,16,64"
    temperatures: Annotated[
        str, typer.Option(help="Temperatures; 0: greedy.", rich_help_panel=CELLS, metavar="T,T,...")
    ] = "0,1"
    precisions: Annotated[
        str,
        typer.Option(
            help="Number formats. Left out: --precision, or bf16, int8 and int4 where the native pass runs.",
            rich_help_panel=CELLS,
            metavar="P,P,...",
        ),
    ] = ""
    inputs: Annotated[
        str,
        typer.Option(
            help="Lengths: short (the prompts as they are), and numbers of tokens of prompt and answer together, as "
            "far as the model's context goes.",
            rich_help_panel=CELLS,
            metavar="L,L,...",
        ),
    ] = "short,8k,16k,32k"
    results: Annotated[
        Path | None,
        typer.Option(
            help="Keep each measurement in this file as it comes; a later call goes on from there.",
            rich_help_panel=CELLS,
            metavar="FILE.jsonl",
        ),
    ] = None
    without: Annotated[
        str,
        typer.Option(
            help="Also measure auto without each of these parts of its planner, or all, one at a time: "
            "grades, own-rates, forgetting, allowances, safeguard, min-probability, trial-passes, rounds-at-once.",
            rich_help_panel=CELLS,
            metavar="PART,...",
        ),
    ] = ""
    work: Annotated[
        bool,
        typer.Option(
            "--work",
            help="Count work in place of time: rows, bytes of weights that are read, calls of drafters. The same on "
            "every machine; the planner weighs it, too.",
            rich_help_panel=CELLS,
        ),
    ] = False

    def require_unused(self) -> None:
        """Refuse options of cells where none are measured.

        Raises:
            BadParameter: naming one.
        """
        for name, default in vars(type(self)()).items():
            if getattr(self, name) != default:
                raise typer.BadParameter("goes with --cells; add that, or leave it out.", param_hint=f"--{name}")


def measure_cells(
    asked: CellOptions,
    engine: EngineOptions,
    *,
    drafters: str | None,
    minutes: float | None,
    prompts: Path | None,
    per_group: int | None,
    max_tokens: int | None,
    ignore_eos: bool,
    seed: int,
    repeats: int | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure the cells and hand out what they amount to; Ctrl-C ends it with what has been measured until then."""
    import time

    from headstart.cli.progress import Activity, import_engine

    import_engine(not quiet)
    from headstart.common.enumerations import Precision
    from headstart.sampling.params import SamplingParams
    from headstart_lab.bench.cells import Grid, ResultsFile, parse_inputs, parse_numbers
    from headstart_lab.bench.cells_report import exhibits, summarise, to_json
    from headstart_lab.bench.cells_run import PLANNER, CellSitting, entrants
    from headstart_lab.bench.extent import MOST_REPEATS
    from headstart_lab.bench.planner_parts import named_parts
    from headstart_lab.bench.prompts import choose, read_prompts
    from headstart_lab.commands.exhibits import hand_out, measurement_record
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin, model_record
    from headstart_lab.workbench import contenders

    began = time.perf_counter()
    listed = [each.name for each in contenders(PLANNER if drafters is None else drafters)]
    known = entrants(listed, named_parts(asked.without))
    users = [int(each) for each in parse_numbers("--users", asked.users, int, 1)]
    grid = Grid(
        _precisions(asked, engine),
        parse_inputs(asked.inputs),
        users,
        parse_numbers("--temperatures", asked.temperatures, float, 0),
    )
    chosen = choose(read_prompts(prompts), per_group)
    params = SamplingParams(temperature=0, seed=seed, max_tokens=max_tokens, ignore_eos=ignore_eos)
    seconds = None if minutes == math.inf else 60 * (minutes or BUDGET_MINUTES)
    settings: dict[str, Any] = {
        "target": str(engine.model),
        "max_tokens": params.max_tokens,
        "ignore_eos": ignore_eos,
        "work": asked.work,
        "asked": [prompt.id for prompt in chosen],
    }
    results = ResultsFile(asked.results, settings)
    where = Origin()
    described: dict[str, Any] = {}
    found_before = len(results.turns) // len(known)
    interruption = Interruption("cells", 1, lambda: len(results.turns) // len(known) - found_before)

    with Activity(shown=not quiet, aloud=True) as activity:

        def load(precision: str) -> Model:
            activity.show(f"Loading {engine.model} in {precision}")
            loaded = engine.changed(precision=Precision(precision)).load_target()
            described.update(model_record(loaded))
            return loaded

        sitting = CellSitting(load, grid, known, chosen, params, results, counts_work=asked.work)

        def begin_round(cells: int) -> None:
            before = len(results.turns) // len(known) - found_before
            interruption.expect(before + cells)
            activity.end_within(None if seconds is None else seconds - (time.perf_counter() - began))
            activity.show("Measuring cells again" if before else "Measuring cells", cells)

        left = None if seconds is None else seconds - (time.perf_counter() - began)
        with interruption.kept():
            sitting.run(
                repeats or (REPEATS if seconds is None else MOST_REPEATS),
                left,
                begin_round,
                lambda turns: activity.advance_saying(1, turns[0].cell.name),
            )
    if not results.turns or not described:
        why = next(iter(sitting.left_out.values()), "no prompt fits")
        raise ConfigError(f"no cell can be measured: {why}.")
    summaries = summarise(results.turns)
    record = measurement_record(
        where,
        described,
        prompts,
        chosen,
        interruption,
        minutes=None if seconds is None else seconds / 60,
        repeats=repeats,
        drafters=[each.name for each in known],
        seed=seed,
        **_of_grid(asked, grid.precisions),
        max_tokens=params.max_tokens,
        ignore_eos=ignore_eos,
    )
    result = to_json(results.turns, summaries, known, sitting.left_out, record)
    shown = exhibits(results.turns, summaries, known, sitting.left_out)
    title = f"Cells of {Path(str(engine.model)).name}"
    hand_out(result, shown, record, as_json, out, "bench-cells", title, interruption.sentence)
    interruption.end()


def _precisions(asked: CellOptions, engine: EngineOptions) -> list[str]:
    """Those that are measured.

    Raises:
        ConfigError: there is no such precision.
    """
    from headstart.backends.native.loader import usable_sets
    from headstart.common.enumerations import Precision

    if asked.precisions:
        named = [each.strip() for each in asked.precisions.split(",") if each.strip()]
        known = [each.value for each in Precision]
        for each in named:
            if each not in known:
                raise ConfigError(f"--precisions names {each!r}; there are {', '.join(known)}.")
        return list(dict.fromkeys(named))
    if engine.precision != Precision.AUTO or str(engine.device) != "cpu" or not usable_sets():
        return [str(engine.precision)]
    return list(_PRECISIONS)


def _of_grid(asked: CellOptions, precisions: Sequence[str]) -> Mapping[str, Any]:
    return {
        "users": asked.users,
        "temperatures": asked.temperatures,
        "precisions": precisions,
        "inputs": asked.inputs,
        "without": asked.without,
        "work": asked.work,
    }
