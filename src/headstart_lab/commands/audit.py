"""``headstart audit``: does speculation change what this model, or a server, says?"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from headstart.cli import options
from headstart.cli.asking import READING
from headstart.cli.option_groups import Only, with_groups
from headstart.common.options import declares
from headstart.entrypoints.engine_options import EngineOptions
from headstart.errors import ConfigError
from headstart_lab.commands.bench import Drafters, Out, PerGroup, Prompts


class Api(StrEnum):
    """Which of OpenAI's two ways to ask for text."""

    CHAT = "chat"
    COMPLETIONS = "completions"


SERVER = "A server instead of a model"
_LOCAL = (*READING, "drafters", "max_batch_size")
_REMOTE = ("against", "api_key_file", "api", "concurrency", "budget", "offers")


@declares
class AuditOptions(EngineOptions):
    """Of an engine that answers to be compared."""

    _defaults: ClassVar = {"max_batch_size": 4}


@with_groups
def audit(
    *,
    context: typer.Context,
    engine: Annotated[AuditOptions, Only("model", *READING, "max_batch_size")],
    drafters: Drafters = "all",
    prompts: Prompts = None,
    per_group: PerGroup = 2,
    max_tokens: options.MaxTokens = 64,
    samples: Annotated[
        int,
        typer.Option(
            min=1,
            help="Texts drawn for each test of a sampled distribution; the report says how small an error they show. "
            "Left out: 1000, or 300 of a server.",
            show_default=False,
        ),
    ] = 1000,
    url: Annotated[
        str | None,
        typer.Option(
            help="Judge the server at this address, whichever speaks the OpenAI API. --model is its name there (left "
            "out: the first that it lists).",
            rich_help_panel=SERVER,
            metavar="URL",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="A second server of the same model to compare it with, such as one that does not speculate.",
            rich_help_panel=SERVER,
            metavar="URL",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="A file whose first line is the API key of the server (of both).",
            rich_help_panel=SERVER,
            metavar="FILE",
        ),
    ] = None,
    api: Annotated[
        Api,
        typer.Option(help="chat: through the model's template. completions: raw text.", rich_help_panel=SERVER),
    ] = Api.CHAT,
    concurrency: Annotated[
        int, typer.Option(min=2, max=256, help="Requests at a time where there are many.", rich_help_panel=SERVER)
    ] = 8,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests at most, to all servers together: --samples, then prompts, are lowered to fit.",
            rich_help_panel=SERVER,
            metavar="N",
        ),
    ] = None,
    offers: Annotated[
        str,
        typer.Option(
            help="Fields beside OpenAI's that the server is to be held to (top_k, min_p), by commas, beside those that "
            "it declares itself.",
            rich_help_panel=SERVER,
            metavar="A,B",
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of requests that sample.")] = 0,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Check that speculation changes nothing: texts, logits and laws of your own model, on your own machine. Or judge
    any OpenAI-compatible server from outside (--url).

    Greedy and coupled texts are compared with plain decoding's token by token, the logits of verified rows bit by bit,
    sampled texts with their exact law by a test, and the verification rules are enumerated. A difference is told from
    a float tie by how near the two best tokens were. The last line is the verdict: WEAK PASS where much
    could be wrong unseen. The exit status is 0 if it passes, 1 if it fails, 3 if a server did not answer all that was
    asked. Ctrl-C ends it with what has been found until then.

    Of a server: greedy texts alone, among others, streamed and cut; seeds; draws against the log-probabilities that it
    gives itself, with top_k, top_p, min_p and logit_bias; stop strings, ends, n, usage, schemas and tool calls. What it
    does not offer is named, not failed.

    Examples:

        headstart audit

        headstart audit --model ./my-model --drafters ngram,draft-model --samples 4000

        headstart audit --precision int8 --prompts my.jsonl --out results

        headstart audit --url http://127.0.0.1:8000

        headstart audit --url http://fast:8000 --against http://plain:8000 --samples 1000 --out results
    """
    given = {
        name
        for name in (*_LOCAL, *_REMOTE, "model", "samples")
        if (source := context.get_parameter_source(name)) is not None and source.name != "DEFAULT"
    }
    for name in sorted(given & set(_REMOTE if url is None else _LOCAL)):
        kind = "a server: give its --url" if url is None else "a model of your own: leave out --url"
        raise ConfigError(f"--{name.replace('_', '-')} is for {kind}.")
    if url is not None:
        from headstart_lab.commands.audit_endpoint import audit_endpoint

        audit_endpoint(
            url,
            against,
            model=str(engine.model) if "model" in given else None,
            api_key_file=api_key_file,
            api=api.value,
            concurrency=concurrency,
            offers=offers,
            prompts=prompts,
            per_group=per_group,
            max_tokens=max_tokens,
            samples=samples if "samples" in given else None,
            budget=budget,
            seed=seed,
            out=out,
            as_json=as_json,
            quiet=quiet,
        )
        return
    from headstart.cli.progress import Activity, import_engine

    import_engine(not quiet)
    from headstart_lab.audit.audit_report import exhibits, to_json
    from headstart_lab.audit.run import Audit, AuditSettings, run_audit
    from headstart_lab.bench.prompts import choose, read_prompts
    from headstart_lab.commands.contenders import saying_memory
    from headstart_lab.commands.exhibits import hand_out, measurement_record
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin, model_record
    from headstart_lab.workbench import contenders

    chosen, listed = choose(read_prompts(prompts), per_group), contenders(drafters)
    settings = AuditSettings(max_tokens=max_tokens, batch_size=engine.max_batch_size, samples=samples, seed=seed)
    where = Origin()
    with Activity(shown=not quiet, aloud=True) as activity:
        activity.show(f"Loading {engine.model}")
        loaded = engine.load_target()
        activity.show("Checking", settings.planned_work(len(chosen), len(listed)))
        told, found = saying_memory(listed, activity), Audit.begin(loaded)
        interruption = Interruption("checks", 2 * len(listed), lambda: found.checks)
        with interruption.kept():
            run_audit(loaded, told, chosen, settings, activity.advance, found)
    found.cut_short = interruption.happened

    record = measurement_record(
        where,
        model_record(loaded),
        prompts,
        chosen,
        interruption,
        max_tokens=max_tokens,
        batch_size=engine.max_batch_size,
        samples=samples,
        seed=seed,
    )
    title = f"Audit of {loaded.backend.name} {Path(str(engine.model)).name}"
    hand_out(to_json(found, record), exhibits(found), record, as_json, out, "audit", title, found.verdict)
    if not as_json:
        if found.idle:
            typer.echo(f"No guess of {', '.join(found.idle)} was accepted, so they put little to the test.")
        typer.echo(found.verdict)
    interruption.end()
    if not found.passed:
        raise typer.Exit(1)
