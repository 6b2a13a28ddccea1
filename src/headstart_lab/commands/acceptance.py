"""``headstart acceptance``: how well a drafter guesses, and where it does not."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import Measured
from headstart.cli.option_groups import with_groups
from headstart.cli.options import SAMPLING, SPECULATION, STOPPING
from headstart.errors import CheckpointError, ConfigError
from headstart_lab.commands.bench import BUDGET_MINUTES, Out, PerGroup, Prompts

FEWEST_TOKENS = 16
"""Of a text that says something."""
Temperatures = Annotated[
    str, typer.Option(help="Temperatures of the target, separated by commas.", rich_help_panel=SAMPLING)
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of requests that sample.", rich_help_panel=SAMPLING)]


@with_groups
def acceptance(
    *,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            "-d",
            help="Drafters to measure, separated by commas, or all. Options follow a name, like draft-model:model=DIR. "
            "Left out: those that pay as they come, and the heads that come with Headstart for the model.",
            rich_help_panel=SPECULATION,
            metavar="A,B,...",
        ),
    ] = None,
    engine: Measured,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.05,
            help="How long it may take in all; each drafter gets its share. Left out: 2, or without a limit where "
            "--full or --per-group says how much.",
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Every prompt, however long that takes.")] = False,
    prompts: Prompts = None,
    per_group: PerGroup = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            min=1,
            help="Most output tokens. Left out: 128, or as few as the time allows.",
            rich_help_panel=STOPPING,
            metavar="N",
        ),
    ] = None,
    temperatures: Temperatures = "0,1",
    seed: Seed = 0,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure how often a drafter's guesses are accepted, and say where acceptance is lost.

    The target writes plainly; at every token the drafter's law is held against the target's (Corollary 3.6 of the
    founding paper), so the rate is exact for each position, not counted. A run with speculation adds acceptance by
    position in the draft. Without further options it takes two minutes: prompts of all tasks in turn, as many as there
    is time for. Ctrl-C ends it with the turns that have been measured until then.

    Examples:

        headstart acceptance

        headstart acceptance --drafter draft-model:layers=10 --per-group 2

        headstart acceptance --drafter ngram,suffix,recycling --temperatures 0

        headstart acceptance --drafter draft-model:model=./small,early-exit:layers=8 --out results
    """
    if full and minutes is not None:
        raise typer.BadParameter("--full has no limit; leave out one of the two.", param_hint="--minutes")
    began = time.perf_counter()
    from headstart.cli.progress import Activity, import_engine

    import_engine(not quiet)
    from headstart.sampling.params import SamplingParams
    from headstart_lab.acceptance.acceptance_report import exhibits, to_json
    from headstart_lab.acceptance.measuring import PASSES_OF_A_TOKEN, Acceptance, measure_acceptance, plain_pace
    from headstart_lab.bench.extent import MOST_TOKENS
    from headstart_lab.bench.prompts import by_turns_of_groups, choose, read_prompts
    from headstart_lab.commands.contenders import saying_memory
    from headstart_lab.commands.exhibits import hand_out, measurement_record
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin, model_record
    from headstart_lab.workbench import PLAIN, Workbench, contenders, most_rows, usual_contenders

    named = None if drafter is None else contenders(drafter)
    if named is not None and all(contender.name == PLAIN for contender in named):
        raise ConfigError(f"--drafter is {drafter!r}, which guesses nothing; name a drafter that does.")
    chosen = choose(read_prompts(prompts), per_group)
    budget = None
    if minutes is not None or not (full or per_group):
        budget = 60 * (minutes or BUDGET_MINUTES)
        # Whatever there is time for, it is of all tasks.
        chosen = by_turns_of_groups(chosen)
    requests = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens or MOST_TOKENS)
        for temperature in parsed_temperatures(temperatures)
    ]
    where = Origin()
    results: list[Acceptance] = []
    skipped: dict[str, str] = {}
    each = len(requests) * sum(len(prompt.turns) for prompt in chosen)
    interruption = Interruption("turns", each, lambda: sum(result.turns for result in results))
    with Activity(shown=not quiet, aloud=True) as activity:
        activity.show(f"Loading {engine.model}")
        loaded = engine.load_target()
        listed = usual_contenders(loaded, alone=True) if named is None else named
        listed = [contender for contender in listed if contender.name != PLAIN]
        interruption.expect(len(listed) * each)
        activity.show("Measuring", len(listed) * each)
        runs_left = len(listed) * len(requests)
        if budget is not None:
            activity.end_within(budget - (time.perf_counter() - began))
            if max_tokens is None:
                each_second = plain_pace(loaded, chosen[0].turns[0])
                fitting = int((began + budget - time.perf_counter()) / runs_left * each_second / PASSES_OF_A_TOKEN)
                length = min(max(fitting, FEWEST_TOKENS), MOST_TOKENS)
                requests = [replace(params, max_tokens=length) for params in requests]
        with interruption.kept():
            for contender in saying_memory(listed, activity):
                if budget is not None and results and time.perf_counter() >= began + budget:
                    skipped[contender.name] = "the time was over; give more --minutes, or name fewer drafters"
                    continue
                try:
                    for place, params in enumerate(requests):
                        now = time.perf_counter()
                        share = (began + budget - now) / (runs_left - place) if budget is not None else math.inf
                        results.append(Acceptance(contender.name, params.temperature))
                        bench = Workbench.of_model(loaded, draft_rows=most_rows(listed))
                        measure_acceptance(
                            loaded,
                            bench,
                            contender,
                            chosen,
                            params,
                            lambda tokens: activity.advance(1, tokens),
                            results[-1],
                            until=now + share,
                        )
                except (ConfigError, CheckpointError) as error:
                    if not contender.optional:
                        raise
                    skipped[contender.name] = str(error)
                runs_left -= len(requests)
        if budget is not None and not interruption.happened:
            interruption.expect(sum(result.turns for result in results))

    results = [result for result in results if result.turns]
    if not results:
        raise ConfigError(f"none of {len(skipped)} drafters can be measured: {next(iter(skipped.values()))}")
    record = measurement_record(
        where,
        model_record(loaded),
        prompts,
        chosen,
        interruption,
        minutes=None if budget is None else budget / 60,
        max_tokens=requests[0].max_tokens,
        seed=seed,
    )
    title = f"Acceptance of guesses for {Path(str(engine.model)).name}"
    shown = exhibits(results, record, skipped)
    hand_out(to_json(results, record, skipped), shown, record, as_json, out, "acceptance", title, interruption.sentence)
    interruption.end()


def parsed_temperatures(text: str) -> list[float]:
    """What ``--temperatures`` names.

    Raises:
        ConfigError: it is no list of numbers, or one of them is below 0.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise ConfigError(f"--temperatures is {text!r}; give numbers that are 0 or more, with commas between them.")
    return values
