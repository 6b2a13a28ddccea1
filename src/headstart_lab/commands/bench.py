"""``headstart bench``: drafters against plain decoding, in one sitting."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import Measured
from headstart.cli.option_groups import with_groups
from headstart.cli.options import OUTPUT, SPECULATION, STOPPING
from headstart_lab.commands.bench_cells import CellOptions, measure_cells
from headstart_train.commands import folders

PROMPTS = "Prompts"

Drafters = Annotated[
    str,
    typer.Option(
        help="Drafters to measure, separated by commas, or all. Options follow a name, like ngram:draft_tokens=8.",
        rich_help_panel=SPECULATION,
        metavar="A,B,...",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        help="Prompts in Spec-Bench's form (id, category, turns). Left out: 24 that come with the package.",
        rich_help_panel=PROMPTS,
        metavar="FILE.jsonl",
    ),
]
PerGroup = Annotated[
    int | None,
    typer.Option(min=1, help="Prompts per task group. Left out: all.", rich_help_panel=PROMPTS),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Also write the result to this directory, as JSON and HTML.",
        rich_help_panel=OUTPUT,
        metavar="DIR",
        callback=folders.made_folder,
    ),
]


BUDGET_MINUTES = 2.0
MOST_CONTEXT = 4096
"""Tokens of a prompt and its answer, unless longer ones are asked for."""


@with_groups
def bench(
    *,
    context: typer.Context,
    engine: Measured,
    drafters: Annotated[
        str | None,
        typer.Option(
            help="Drafters to measure, separated by commas, or all. Options follow a name, like ngram:draft_tokens=8. "
            "Left out: those that pay as they come, and the heads that come with Headstart for the model.",
            rich_help_panel=SPECULATION,
            metavar="A,B,...",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.05,
            help="How long it may take in all: what is measured is fitted to it. Left out: 2, or without a limit where "
            "--full, --per-group or --repeats says how much.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every prompt, whole answers, however long that takes.")] = False,
    prompts: Prompts = None,
    per_group: PerGroup = None,
    input_tokens: Annotated[
        str,
        typer.Option(
            help="Prompts of so many tokens instead, --per-group (1) of each, made of the prompts' texts: reading and "
            "decoding by length, without a limit of time unless --minutes says one.",
            rich_help_panel=PROMPTS,
            metavar="N,N,...",
        ),
    ] = "",
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most output tokens. Left out: 128, or as few as the time allows.",
            rich_help_panel=STOPPING,
            metavar="N",
        ),
    ] = None,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of requests that sample.")] = 0,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1, help="Repeat everything N times; figures are medians. Left out: as often as the time allows, or 1."
        ),
    ] = None,
    cells: CellOptions,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure drafters against plain decoding: speed, acceptance, where the time goes, and what theory expects.

    Each prompt is decoded by all drafters one right after the other, so what else the machine does hits all alike:
    trust the ratios. The tokens are compared with plain decoding's. One sequence decodes at a time. Without further
    options it takes two minutes. Ctrl-C ends it with what has been measured until then.

    Examples:

        headstart bench

        headstart bench --minutes 10 --drafters all

        headstart bench --drafters ngram,suffix,recycling --per-group 2 --repeats 3

        headstart bench --drafters ngram:draft_tokens=4,ngram:draft_tokens=8 --precision int8

        headstart bench --prompts spec_bench.jsonl --per-group 6 --repeats 3 --out results

        headstart bench --full --drafters all

        headstart bench --prompts speed_bench/qualitative.jsonl --per-group 4

        headstart bench --input-tokens 1024,4096,8000 --drafters auto --max-tokens 64

        headstart bench --cells --results cells.jsonl --out results

        headstart bench --cells --without all --users 1,16 --inputs short --minutes 20
    """
    if context.invoked_subcommand is not None:
        return
    if cells.cells:
        if input_tokens or temperature:
            raise typer.BadParameter(
                "cells have lengths and temperatures of their own: --inputs and --temperatures.", param_hint="--cells"
            )
        measure_cells(
            cells,
            engine,
            drafters=drafters,
            minutes=math.inf if full else minutes,
            prompts=prompts,
            per_group=per_group,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            seed=seed,
            repeats=repeats,
            out=out,
            as_json=as_json,
            quiet=quiet,
        )
        return
    cells.require_unused()
    if full and minutes is not None:
        raise typer.BadParameter("--full has no limit; leave out one of the two.", param_hint="--minutes")
    began = time.perf_counter()
    from headstart.cli.progress import Activity, import_engine, spoken

    import_engine(not quiet)
    from headstart.sampling.params import SamplingParams
    from headstart_lab.bench.drafters_report import exhibits, to_json
    from headstart_lab.bench.extent import MOST_REPEATS, MOST_TOKENS, Extent, fit
    from headstart_lab.bench.lengths import by_length, of_lengths, parse_lengths
    from headstart_lab.bench.prompts import choose, read_prompts
    from headstart_lab.bench.run import Sitting
    from headstart_lab.bench.summary import summarise
    from headstart_lab.commands.contenders import saying_memory
    from headstart_lab.commands.exhibits import hand_out, measurement_record
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin, model_record
    from headstart_lab.workbench import Workbench, contenders, most_rows, usual_contenders

    budget = None
    lengths = parse_lengths(input_tokens)
    if minutes is not None or not (full or per_group or repeats or lengths):
        budget = 60 * (minutes or BUDGET_MINUTES)
    params = SamplingParams(
        temperature=temperature, seed=seed, max_tokens=max_tokens or MOST_TOKENS, ignore_eos=ignore_eos
    )
    chosen, named = (
        choose(read_prompts(prompts), None if lengths else per_group),
        None if drafters is None else contenders(drafters),
    )
    where = Origin()
    with Activity(shown=not quiet, aloud=True) as activity:
        activity.show(f"Loading {engine.model}")
        loaded = engine.load_target()
        listed = usual_contenders(loaded) if named is None else named
        if lengths:
            chosen = of_lengths(loaded, chosen, lengths, per_group or 1, params.max_tokens or MOST_TOKENS, seed)
        room = max(MOST_CONTEXT, *((length + (params.max_tokens or MOST_TOKENS)) for length in lengths), 0)
        bench = Workbench.of_model(loaded, max_context=room, draft_rows=most_rows(listed))
        sitting = Sitting(loaded, bench, saying_memory(listed, activity), params)
        runs, extent = sitting.results, Extent(chosen, max_tokens or MOST_TOKENS, repeats or 1)
        interruption = Interruption("turns", extent.turns, lambda: runs.turns)
        with interruption.kept():
            left, most_repeats = None, extent.repeats
            if budget is not None:
                activity.show("Making the drafters")
                pace = sitting.prepare(chosen[0])
                left = max(budget - (time.perf_counter() - began), 0.0)
                able = len(listed) - len(runs.skipped)
                extent = fit(chosen, pace, able, left, max_tokens=max_tokens, repeats=repeats)
                interruption.expect(extent.turns)
                most_repeats = repeats or MOST_REPEATS
                activity.end_within(left)
                activity.announce(
                    f"{spoken(left)} for {able - 1} drafters and plain decoding: {len(extent.prompts)} prompts, up to "
                    f"{extent.max_tokens} tokens each."
                )
            activity.show("Measuring", None if budget is not None else extent.turns * len(listed))
            sitting.run(
                extent.prompts,
                most_repeats,
                lambda run: activity.advance(1, run.stats.tokens),
                max_tokens=extent.max_tokens,
                seconds=left,
            )
            interruption.expect(max(extent.turns, runs.turns))

    record = measurement_record(
        where,
        model_record(loaded),
        prompts,
        extent.prompts,
        interruption,
        minutes=None if budget is None else budget / 60,
        input_tokens=lengths,
        repeats=len({run.repeat for run in runs.runs}),
        max_tokens=extent.max_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        seed=seed,
        batch_size=1,
    )
    summaries = summarise(runs)
    result, shown = to_json(runs, summaries, record), exhibits(runs, summaries)
    if lengths:
        shown.insert(0, by_length(runs.runs))
    title = f"Benchmark of {loaded.backend.name} {Path(str(engine.model)).name}"
    hand_out(result, shown, record, as_json, out, "bench", title, interruption.sentence)
    interruption.end()
