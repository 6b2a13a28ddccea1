"""``headstart serve``: one model over HTTP, or several."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.option_groups import with_groups
from headstart.common.options import option_of
from headstart.errors import ConfigError, HeadstartError
from headstart_server.arguments import SERVER, ServeArguments
from headstart_server.configuration import configured
from headstart_server.serving import Way, ways

SPARE_CONNECTIONS = 16
"""For requests that are not generation, and for those that are told to come again later."""


@partial(with_groups, found=ways())
def serve(
    *,
    arguments: ServeArguments,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.", rich_help_panel=SERVER)] = 8000,
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
    config: Annotated[
        Path | None,
        typer.Option(
            help="Options from a file (YAML or JSON), each by its name, like max-context: 4096; the command line goes "
            "before it.",
            rich_help_panel=SERVER,
            metavar="FILE",
            is_eager=True,
            callback=configured,
        ),
    ] = None,
    **added: Way,
) -> None:
    """Serve a model, or several, over the OpenAI API (and Anthropic's, Ollama's, llama.cpp's and Mistral's), with
    speculation and a page at / that shows it at work.

    Examples:

        headstart serve

        headstart serve --model ./my-model --drafter suffix --also ngram --port 8080

        headstart serve --config serve.yaml --port 8081

        headstart serve --models ./models --max-loaded 2

        headstart serve --ray --replicas 2 --cpus-per-replica 8

        curl localhost:8000/v1/completions -H 'content-type: application/json' -d '{"prompt": "Once upon a time"}'
    """
    try:
        from headstart_server.app import app_of, create_app
        from headstart_server.engine_thread import EngineThread
        from headstart_server.listening import Patience, Server, bound, end_quietly, room_for_connections
        from headstart_server.many_models import ManyModels
        from headstart_server.settings import LOOPBACK
    except ImportError as error:
        raise ConfigError(
            f"serving needs {error.name}; install headstart with its extra: headstart[server]."
        ) from error
    from headstart.cli.progress import Activity
    from headstart.common import phases

    if arguments.allow_host is None and host in LOOPBACK:
        arguments = arguments.changed(allow_host=LOOPBACK)
    keys = arguments.keys()
    for way in added.values():
        way.check(arguments)
    with bound(host, port):
        pass  # An address that cannot be used is refused before anything slow is done.
    listed = _listed(arguments, [name for name, way in added.items() if way.chosen])
    arguments.check()
    if host not in LOOPBACK and not keys:
        typer.echo("Warning: there are no API keys; everybody who can reach this address is served.", err=True)
    for way in added.values():
        if way.chosen:
            way.serve(arguments, keys, host, port)
            return
    patience = Patience(room_for_connections(max_connections), client_seconds, arguments.drain_seconds)
    # Samples that wait keep their connections, and some connections must be left for others.
    spare = patience.max_connections - arguments.max_batch_size - SPARE_CONNECTIONS
    max_waiting = min(arguments.max_waiting, max(spare, 0))
    if listed is not None:
        told = {name: options.changed(max_waiting=max_waiting) for name, options in listed.items()}
        app = app_of(ManyModels(told, arguments.settings(keys), arguments.keeping()))
        what = f"{len(listed)} models of {arguments.models}, each when it is asked for"
    else:
        with Activity() as activity, phases.heard(activity.phase):
            llm = arguments.load()
        for sentence in (*llm.notices, llm.memory.sentence(), llm.sampling_defaults.sentence(), llm.answers.sentence()):
            typer.echo(sentence, err=True)
        engine = EngineThread(llm, max_waiting, arguments.max_seconds)
        engine.start()
        engine.rehearse()
        app = create_app(llm, arguments.settings(keys), engine=engine)
        names = arguments.names
        what = str(arguments.model) + ("" if names == (str(arguments.model),) else f" as {', '.join(names)}")
    with bound(host, port) as sockets:
        welcome = _welcome(what, sockets)
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


def _listed(arguments: ServeArguments, ways: Sequence[str]) -> dict[str, ServeArguments] | None:
    """The several models that are asked for, each with its options; None: one is.

    Raises:
        ConfigError: they cannot be read, or an option goes with several models, or with one, alone.
    """
    if arguments.models is None:
        changed = [name for name in _OF_SEVERAL if getattr(arguments, name) != option_of(ServeArguments, name).default]
        if changed:
            raise ConfigError(f"{changed[0]} is of several models; give models as well.")
        return None
    if ways:
        raise ConfigError(f"models is given beside {ways[0]}, which serves one model; leave one of them out.")
    from headstart_server.model_list import read_models

    found = read_models(arguments)
    for name, options in found.items():
        try:
            options.check()
        except HeadstartError as error:
            raise ConfigError(f"models is {arguments.models}, whose {name!r} cannot be served: {error}") from error
    return found


_OF_SEVERAL = ("max_loaded", "keep_alive", "load_seconds")
"""Options that say nothing of one model."""


def _welcome(what: str, sockets: Sequence[socket.socket]) -> str:
    """What is served, and where."""
    host, port, *_ = sockets[0].getsockname()
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    return f"Serving {what}.\nOpenAI API: {address}/v1 (described at {address}/docs)\nLab page:   {address}/"
