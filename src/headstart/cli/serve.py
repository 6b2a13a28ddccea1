"""``headstart serve``: the OpenAI API over one model."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.asking import Running
from headstart.cli.option_groups import with_groups
from headstart.cli.scaling import Scaling
from headstart.drafting import FREE_DRAFTERS
from headstart.errors import ConfigError
from headstart.other_names import parse_speculation

SPARE_CONNECTIONS = 16
"""For requests that are not generation, and for those that are told to come again later."""
SERVER = "Server"


class SpecDecodeMetrics(StrEnum):
    """How much each reply says of its guesses: vLLM's names, but for ``detailed``."""

    NONE = "none"
    SUMMARY = "summary"


@with_groups
def serve(
    *,
    running: Running,
    drafter: options.AskedDrafter = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also",
            help=f"A further drafter that requests may name; may be repeated. If left out: {', '.join(FREE_DRAFTERS)}, "
            "and the trained heads that come with Headstart for this model.",
            rich_help_panel=options.SPECULATION,
            metavar="NAME",
        ),
    ] = None,
    draft_model: options.DraftModel = None,
    draft_tokens: options.DraftTokens = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(
            help='vLLM\'s way to say the same: {"method": NAME, "model": M, "num_speculative_tokens": K}.',
            rich_help_panel=options.SPECULATION,
            metavar="JSON",
        ),
    ] = None,
    batch_size: options.BatchSize = 16,
    cache_tokens: Annotated[
        int | None,
        typer.Option(
            min=2, help="Tokens that the key-value cache holds; about 1 GiB if left out.", rich_help_panel=options.MODEL
        ),
    ] = None,
    max_rows: Annotated[
        int,
        typer.Option(
            "--max-rows-per-pass",
            "--max-num-batched-tokens",
            min=1,
            help="Most rows of a pass: decoding comes first, chunks of prompts share the rest.",
            rich_help_panel=options.MODEL,
        ),
    ] = 512,
    prefix_caching: Annotated[
        bool,
        typer.Option(help="Keep what was computed, for requests that begin alike.", rich_help_panel=options.MODEL),
    ] = True,
    generation_config: options.GenerationConfig = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.", rich_help_panel=SERVER)] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="A file of API keys, one per line. If left out: those in HEADSTART_API_KEYS, separated by commas.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    served_name: Annotated[
        list[str] | None,
        typer.Option(
            help="What clients call the model; may be repeated: all names are answered to, the first one is told. Its "
            "own name if left out.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name that requests may be addressed to, * for any; may be repeated. If left out: on a "
            "loopback address only its own names, else any.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin whose web pages may send requests, * for any; may be repeated.", rich_help_panel=SERVER
        ),
    ] = None,
    spec_decode_metrics: Annotated[
        SpecDecodeMetrics,
        typer.Option(
            "--per-request-spec-decode-metrics",
            help="summary: each reply with one sample has metrics.speculative_decoding, in vLLM's form (a request can "
            'ask for it by itself: "speculation": {"metrics": true}).',
            rich_help_panel=SERVER,
        ),
    ] = SpecDecodeMetrics.NONE,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Samples that may wait; further ones get status 429.", rich_help_panel=SERVER)
    ] = 64,
    max_seconds: Annotated[
        float, typer.Option(min=0.001, help="Longest wall time of a request.", rich_help_panel=SERVER)
    ] = 600.0,
    max_connections: Annotated[
        int,
        typer.Option(
            min=1,
            help="Most open connections; for new ones, those that have been idle for longest are closed.",
            rich_help_panel=SERVER,
        ),
    ] = 1024,
    client_seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Longest time that a client may leave its connection idle, send a request, or not read its answer.",
            rich_help_panel=SERVER,
        ),
    ] = 60.0,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="Longest time from SIGTERM or Ctrl-C to the end of requests in progress.",
            rich_help_panel=SERVER,
        ),
    ] = 30.0,
    scaling: Scaling,
) -> None:
    """Serve a model over the OpenAI API, with speculation and a page at / that shows it at work.

    Examples:

        headstart serve

        headstart serve --model ./my-model --drafter suffix --also ngram --port 8080

        headstart serve --ray --replicas 2 --cpus-per-replica 8

        curl localhost:8000/v1/completions -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'
    """
    try:
        from headstart.server.app import create_app
        from headstart.server.arguments import ServeArguments, api_keys
        from headstart.server.engine_thread import EngineThread
        from headstart.server.listening import Patience, Server, bound, end_quietly, room_for_connections
        from headstart.server.settings import LOOPBACK
    except ImportError as error:
        raise ConfigError(
            f"serving needs {error.name}; install headstart with its extra: headstart[server]."
        ) from error
    from headstart import phases
    from headstart.cli.progress import Activity

    keys = api_keys(api_key_file)
    scaling.check()
    with bound(host, port):
        pass  # An address that cannot be used is refused before anything slow is done.
    named: dict[str, Any] = {"drafter": drafter, "draft_model": draft_model, "draft_tokens": draft_tokens}
    if speculative_config is not None:
        if any(value is not None for value in named.values()):
            raise ConfigError("--speculative-config says the same as --drafter, --draft-model and --draft-tokens.")
        named |= parse_speculation(speculative_config)
    arguments = ServeArguments(
        **{each.name: getattr(running, each.name) for each in fields(running)},
        **named,
        also=None if also is None else tuple(also),
        batch_size=batch_size,
        cache_tokens=cache_tokens,
        max_rows=max_rows,
        prefix_caching=prefix_caching,
        generation_config=generation_config,
        served_name=tuple(served_name or ()) or None,
        allow_host=tuple(allow_host or (LOOPBACK if host in LOOPBACK else ())) or None,
        allow_origin=tuple(allow_origin or ()) or None,
        spec_decode_metrics=spec_decode_metrics is SpecDecodeMetrics.SUMMARY,
        max_waiting=max_waiting,
        max_seconds=max_seconds,
    )
    arguments.check()
    if host not in LOOPBACK and not keys:
        typer.echo("Warning: there are no API keys; everybody who can reach this address is served.", err=True)
    if scaling.ray:
        scaling.serve(arguments, keys, host, port, drain_seconds)
        return
    with Activity() as activity, phases.heard(activity.phase):
        llm = arguments.load()
    patience = Patience(room_for_connections(max_connections), client_seconds, drain_seconds)
    # Samples that wait keep their connections, and some connections must be left for others.
    max_waiting = min(max_waiting, max(patience.max_connections - batch_size - SPARE_CONNECTIONS, 0))
    for sentence in (*llm.notices, llm.memory.sentence(), llm.sampling_defaults.sentence()):
        typer.echo(sentence, err=True)
    engine = EngineThread(llm, max_waiting, max_seconds)
    engine.start()
    engine.rehearse()
    app = create_app(llm, arguments.settings(keys), engine=engine)
    with bound(host, port) as sockets:
        welcome = _welcome(running.model, arguments.names, sockets)
        server = Server(app, sockets, patience, lambda: typer.echo(welcome, err=True))
        end_quietly(server)
        # A second Ctrl-C cuts off the requests in progress; that is wanted, so it needs no traceback in the log.
        with suppress(KeyboardInterrupt):
            server.run()
    if server.force_exit:
        # Where Ctrl-C is ignored, as in a script's background jobs, the signal that uvicorn raises is not heard.
        raise KeyboardInterrupt
    if not server.started:
        raise typer.Exit(1)


def _welcome(model: str, names: Sequence[str], sockets: Sequence[socket.socket]) -> str:
    """What is served, and where."""
    host, port, *_ = sockets[0].getsockname()
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    called = "" if tuple(names) == (model,) else f" as {', '.join(names)}"
    return f"Serving {model}{called}.\nOpenAI API: {address}/v1 (described at {address}/docs)\nLab page:   {address}/"
