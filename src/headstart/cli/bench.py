"""``headstart bench``: every drafter against plain decoding, in one sitting."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options
from headstart.cli.options import OUTPUT, SPECULATION, PrecisionChoice
from headstart.models.aliases import DEFAULT_MODEL

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
        callback=options.made_folder,
    ),
]


def bench(
    context: typer.Context,
    model: options.Model = DEFAULT_MODEL,
    revision: options.Revision = None,
    precision: options.Precision = PrecisionChoice.AUTO,
    drafters: Drafters = "all",
    prompts: Prompts = None,
    per_group: PerGroup = None,
    max_tokens: options.MaxTokens = 128,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of requests that sample.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Repeat everything N times; figures are medians.")] = 1,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure every drafter against plain decoding: speed, acceptance, where the time goes, and what theory expects.

    Each prompt is decoded by all drafters one right after the other, so what else the machine does hits all alike:
    trust the ratios. The tokens are compared with plain decoding's. One sequence decodes at a time. Ctrl-C ends it with
    what has been measured until then.

    Examples:

        headstart bench

        headstart bench --drafters ngram,suffix,recycling --per-group 2 --repeats 3

        headstart bench --drafters ngram:draft_tokens=4,ngram:draft_tokens=8 --precision int8

        headstart bench --prompts spec_bench.jsonl --per-group 6 --repeats 3 --out results
    """
    if context.invoked_subcommand is not None:
        return
    from headstart.analysis.bench.prompts import choose, read_prompts
    from headstart.analysis.bench.report import exhibits, to_json
    from headstart.analysis.bench.run import Sitting
    from headstart.analysis.bench.summary import summarise
    from headstart.analysis.provenance import Origin
    from headstart.analysis.workbench import Workbench, contenders, most_rows
    from headstart.cli.exhibits import hand_out, measurement_record
    from headstart.cli.interruption import Interruption
    from headstart.cli.progress import Activity, saying_memory
    from headstart.loading import load_model
    from headstart.sampling.params import SamplingParams

    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, ignore_eos=ignore_eos)
    chosen, listed = choose(read_prompts(prompts), per_group), contenders(drafters)
    where = Origin()
    with Activity(shown=not quiet) as activity:
        activity.show(f"Loading {model}")
        loaded = load_model(model, precision.value, revision)
        sitting = Sitting(
            loaded, Workbench.of_model(loaded, draft_rows=most_rows(listed)), saying_memory(listed, activity), params
        )
        runs, turns = sitting.results, repeats * sum(len(prompt.turns) for prompt in chosen)
        interruption = Interruption("turns", turns, lambda: runs.turns)
        activity.show("Measuring", turns * len(listed))
        with interruption.kept():
            sitting.run(chosen, repeats, lambda run: activity.advance(1, run.stats.tokens))

    record = measurement_record(
        where,
        loaded,
        prompts,
        chosen,
        interruption,
        repeats=len({run.repeat for run in runs.runs}),
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        temperature=temperature,
        seed=seed,
        batch_size=1,
    )
    summaries = summarise(runs)
    result, shown = to_json(runs, summaries, record), exhibits(runs, summaries)
    title = f"Benchmark of {loaded.backend.name} {Path(model).name}"
    hand_out(result, shown, record, as_json, out, "bench", title, interruption.sentence)
    interruption.end()
