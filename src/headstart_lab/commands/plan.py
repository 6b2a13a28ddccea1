"""``headstart plan``: what speculation will bring for a model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import Measured
from headstart.cli.option_groups import with_groups
from headstart.cli.options import SPECULATION
from headstart.errors import ConfigError
from headstart_lab.commands.bench import Out, PerGroup, Prompts


@with_groups
def plan(
    *,
    engine: Measured,
    drafters: Annotated[
        str | None,
        typer.Option(
            help="Drafters to plan for, separated by commas, or all. Options follow a name, like "
            "draft-model:model=DIR. Left out: those that pay as they come, and the heads that come with Headstart for "
            "the model.",
            rich_help_panel=SPECULATION,
            metavar="A,B,...",
        ),
    ] = None,
    what_if: Annotated[
        str | None,
        typer.Option(
            help="In place of drafters that are there, one that is not: eagle3, p-eagle, dflash, mtp, self, or "
            "draft-model=0.5B with its size. What it costs is measured with random weights of the right shape.",
            rich_help_panel=SPECULATION,
            metavar="NAME",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            help="With --what-if: how often the first, the first two, ... guesses of a round are right, as "
            "0.8,0.65,0.5. Left out: as others have published, or counted where the weights are there (self).",
            rich_help_panel=SPECULATION,
            metavar="A,B,...",
        ),
    ] = None,
    prompts: Prompts = None,
    per_group: PerGroup = 1,
    max_tokens: options.MaxTokens = 64,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of requests that sample.")] = 0,
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes to plan for, separated by commas.")] = "1,4,16",
    repeats: Annotated[int, typer.Option(min=1, help="Measurements of each pass.")] = 7,
    check: Annotated[bool, typer.Option("--check", help="Decode as planned and compare with the prediction.")] = False,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what passes and drafts cost and how often guesses hold, and predict which drafter, draft length and tree
    size pay.

    Meanwhile a drafter may draft 15 levels and 31 nodes, unless it is named with a limit: what shorter and smaller
    drafts bring follows from those. Ctrl-C ends it with the drafters that have been measured until then.

    Examples:

        headstart plan

        headstart plan --drafters suffix,recycling --batch-sizes 1,8,32 --check

        headstart plan --prompts mine.jsonl --per-group 4 --out results

        headstart plan --what-if eagle3 --rates 0.8,0.65,0.5,0.4
    """
    from headstart.cli.progress import Activity, import_engine

    import_engine(not quiet)
    from headstart.sampling.params import SamplingParams
    from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
    from headstart_lab.commands.contenders import saying_memory
    from headstart_lab.commands.exhibits import hand_out, measurement_record
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.plan import what_if as supposed
    from headstart_lab.plan import what_if_report
    from headstart_lab.plan.draft_limits import freely
    from headstart_lab.plan.forecast import Plan, make_plan, planned_work
    from headstart_lab.plan.forecast import check as check_plan
    from headstart_lab.plan.plan_report import exhibits, to_json
    from headstart_lab.plan.published_rates import LONGEST
    from headstart_lab.provenance import Origin, model_record
    from headstart_lab.workbench import PLAIN, Contender, Workbench, contenders, most_rows, usual_contenders

    _check_what_if(what_if, rates, drafters, check)
    batches, named = _batches(batch_sizes), None if drafters is None else contenders(drafters)
    told = None if what_if is None else supposed.rates_of(what_if, rates)
    if what_if is not None and told is not None:
        named = [Contender.parse(PLAIN), supposed.contender(what_if, len(told[0]) or LONGEST)]
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
    chosen = choose(read_prompts(prompts), per_group)
    where = Origin()
    with Activity(shown=not quiet, aloud=True) as activity:
        activity.show(f"Loading {engine.model}")
        loaded = engine.load_target()
        listed = usual_contenders(loaded, alone=True) if named is None else named
        bench = Workbench.of_model(loaded, max_sequences=max(batches), max_context=1024, draft_rows=most_rows(listed))
        encoded = [encode_turns(loaded, prompt.turns[:1], []) for prompt in chosen]
        fitting = [tokens for tokens in encoded if bench.fits(tokens, max_tokens)]
        if not fitting:
            raise ConfigError(f"no prompt has room for {max_tokens} more tokens; lower --max-tokens.")
        listed = listed if told else [*map(freely, listed)]
        listed = saying_memory(listed, activity)
        if what_if is not None and supposed.has_weights(what_if):
            bench.open(listed[-1])  # what does not run here is refused before anything is measured
        made = Plan()
        interruption = Interruption("drafters", len(listed) - 1, lambda: max(len(made.profiles) - 1, 0))
        with interruption.kept():
            if told is not None:
                asked = len(told[0]) or LONGEST, fitting, params, batches, repeats
                activity.show("Measuring", supposed.planned_work(asked[0], len(fitting), *asked[2:]))
                made.profiles += supposed.measured(bench, listed[-1], *asked, activity.advance)
            else:
                activity.show("Measuring", planned_work(len(listed), len(fitting), params, batches, repeats))
                make_plan(bench, listed, fitting, params, batches, repeats, activity.advance, made)
            if check:
                activity.show("Checking")
                check_plan(bench, made, fitting, params)

    record = measurement_record(
        where,
        model_record(loaded),
        prompts,
        chosen,
        interruption,
        left_out=len(encoded) - len(fitting),
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        repeats=repeats,
    )
    if what_if is not None and told is not None:
        found = [supposed.what_if(what_if, *told, made.profiles[1], made.profiles[0], batch) for batch in batches]
        title = f"What {what_if} would bring to {loaded.backend.name} {Path(str(engine.model)).name}"
        answer = what_if_report.to_json(found, record)
        hand_out(answer, what_if_report.exhibits(found), record, as_json, out, "what-if", title, interruption.sentence)
        interruption.end()
        return
    title = f"Plan for {loaded.backend.name} {Path(str(engine.model)).name}"
    hand_out(to_json(made, record), exhibits(made), record, as_json, out, "plan", title, interruption.sentence)
    interruption.end()


def _check_what_if(what_if: str | None, rates: str | None, drafters: str | None, check: bool) -> None:
    if what_if is None and rates is not None:
        raise ConfigError(f"--rates is {rates!r:.60}, but no --what-if names whose they are; name a drafter.")
    for name, given in (("--drafters", drafters is not None), ("--check", check)):
        if what_if is not None and given:
            raise ConfigError(
                f"{name} is given with --what-if, which plans for one drafter that is not there; drop one."
            )


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= 64 for part in parts):
        raise ConfigError(f"--batch-sizes is {text!r}; give whole numbers from 1 to 64, with commas between them.")
    return sorted({1, *map(int, parts)})
