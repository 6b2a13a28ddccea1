"""``headstart audit``: does speculation change what this model says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headstart import enumerations
from headstart.cli import options
from headstart.cli.bench import Drafters, Out, PerGroup, Prompts
from headstart.models.aliases import DEFAULT_MODEL


def audit(
    model: options.Model = DEFAULT_MODEL,
    revision: options.Revision = None,
    precision: options.Precision = enumerations.Precision.AUTO,
    drafters: Drafters = "all",
    prompts: Prompts = None,
    per_group: PerGroup = 2,
    max_tokens: options.MaxTokens = 64,
    batch_size: options.BatchSize = 4,
    samples: Annotated[
        int,
        typer.Option(
            min=1,
            help="Texts drawn for each test of a sampled distribution; the report says how small an error they show.",
        ),
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of requests that sample.")] = 0,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check that speculation changes nothing: texts, logits and laws of your own model, on your own machine.

    Greedy and coupled texts are compared with plain decoding's token by token, the logits of verified rows bit by bit,
    sampled texts with their exact law by a test, and the verification rules are enumerated. A difference is told from
    a float tie by how near the two best tokens were. The last line is the verdict; the exit status is 1 if it fails.
    Ctrl-C ends it with what has been found until then.

    Examples:

        headstart audit

        headstart audit --model ./my-model --drafters ngram,draft-model --samples 4000

        headstart audit --precision int8 --prompts my.jsonl --out results
    """
    from headstart.analysis.audit.report import exhibits, to_json
    from headstart.analysis.audit.run import Audit, AuditSettings, run_audit
    from headstart.analysis.bench.prompts import choose, read_prompts
    from headstart.analysis.provenance import Origin
    from headstart.analysis.workbench import contenders
    from headstart.cli.exhibits import hand_out, measurement_record
    from headstart.cli.interruption import Interruption
    from headstart.cli.progress import Activity, saying_memory
    from headstart.loading import load_model

    chosen, listed = choose(read_prompts(prompts), per_group), contenders(drafters)
    settings = AuditSettings(max_tokens=max_tokens, batch_size=batch_size, samples=samples, seed=seed)
    where = Origin()
    with Activity(shown=not quiet, aloud=True) as activity:
        activity.show(f"Loading {model}")
        loaded = load_model(model, precision.value, revision)
        activity.show("Checking", 2 * len(listed) + 1)
        told, found = saying_memory(listed, activity), Audit.begin(loaded)
        interruption = Interruption("checks", 2 * len(listed), lambda: found.checks)
        with interruption.kept():
            run_audit(loaded, told, chosen, settings, lambda tokens: activity.advance(1, tokens), found)
    found.cut_short = interruption.happened

    record = measurement_record(
        where,
        loaded,
        prompts,
        chosen,
        interruption,
        max_tokens=max_tokens,
        batch_size=batch_size,
        samples=samples,
        seed=seed,
    )
    title = f"Audit of {loaded.backend.name} {Path(model).name}"
    hand_out(to_json(found, record), exhibits(found), record, as_json, out, "audit", title, found.verdict)
    if not as_json:
        if found.idle:
            typer.echo(f"No guess of {', '.join(found.idle)} was accepted, so they put little to the test.")
        typer.echo(found.verdict)
    interruption.end()
    if not found.passed:
        raise typer.Exit(1)
