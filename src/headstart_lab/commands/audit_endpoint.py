"""``headstart audit --url``: a server judged from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path

import typer

from headstart.cli.wording import tell_error
from headstart.errors import ConfigError, HeadstartError
from headstart_server.arguments import api_keys

SAMPLES = 300
NO_VERDICT = 3
"""Exit status where not all was answered and nothing wrong was found: of the server it says nothing."""


def audit_endpoint(
    url: str,
    against: str | None,
    *,
    model: str | None,
    api_key_file: Path | None,
    api: str,
    concurrency: int,
    offers: str,
    prompts: Path | None,
    per_group: int | None,
    max_tokens: int,
    samples: int | None,
    budget: int | None,
    seed: int,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Judge a server, or one against another, and report.

    Args:
        samples: None: SAMPLES.

    Raises:
        ConfigError: an address, a key or a file of prompts is wrong, or the budget is too small.
        Exit: the audit fails, or there is no verdict, since a server cannot be reached, refuses or fails.
    """
    from headstart.cli.progress import Activity
    from headstart_lab.audit.endpoint.client import Endpoint
    from headstart_lab.audit.endpoint.endpoint_report import exhibits, to_json
    from headstart_lab.audit.endpoint.run import EndpointRun, EndpointSettings
    from headstart_lab.bench.prompts import choose, read_prompts
    from headstart_lab.commands.exhibits import hand_out
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin

    held_to = frozenset(filter(None, map(str.strip, offers.split(","))))
    key = None if api_key_file is None else api_keys(api_key_file)[0]
    chosen = choose(read_prompts(prompts), per_group)
    servers = 1 if against is None else 2
    settings = EndpointSettings(max_tokens, SAMPLES if samples is None else samples, budget, seed)
    settings, kept = settings.fitted(len(chosen), servers)
    if kept < len(chosen):
        # Evenly spread, since those of a group stand together.
        chosen = [chosen[place * len(chosen) // kept] for place in range(kept)]
    where = Origin(computes_here=False)
    ends = [Endpoint(address, model, key, api, concurrency) for address in (url, against) if address is not None]
    run = EndpointRun(ends[0], ends[1] if against else None, [prompt.turns[0] for prompt in chosen], settings, held_to)
    planned = settings.planned(len(chosen), servers)
    interruption = Interruption("requests", planned, lambda: run.asked if run.audit.findings else 0)
    with Activity(shown=not quiet, aloud=True) as activity:
        activity.show(f"Asking {run.endpoint.url}", planned)
        stage = ""

        def begin(check: str) -> None:
            nonlocal stage
            stage = check

        run.on_check = begin
        for end in ends:
            end.on_request = lambda: activity.advance_saying(1, stage)
        try:
            with interruption.kept():
                asyncio.run(run.run())
        except ConfigError:
            raise
        except HeadstartError as error:
            tell_error(f"{error} There is no verdict.")
            raise typer.Exit(NO_VERDICT) from error
    found = run.audit
    found.cut_short = found.cut_short or interruption.happened

    record = {
        "provenance": where.finished(),
        "server": {"url": found.url, "against": found.against, "model": found.model},
        "settings": {
            "prompts": "package" if prompts is None else prompts.name,
            "prompt_ids": [prompt.id for prompt in chosen],
            "api": api,
            "concurrency": concurrency,
            "max_tokens": max_tokens,
            "samples": settings.samples,
            "budget": budget,
            "seed": seed,
        },
        **interruption.record(),
    }
    title = f"Audit of {found.model} at {found.url}"
    hand_out(to_json(found, record), exhibits(found), record, as_json, out, "audit-endpoint", title, found.verdict)
    if not as_json:
        typer.echo(found.verdict)
    if found.ended:
        typer.echo(f"Not all was asked: {found.ended}", err=True)
    interruption.end()
    if not found.passed:
        raise typer.Exit(1 if found.faults else NO_VERDICT)
