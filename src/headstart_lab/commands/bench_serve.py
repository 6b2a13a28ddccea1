"""``headstart bench serve``: a server under load, with speculation and without, in one sitting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from headstart.cli import options
from headstart.cli.option_groups import with_groups
from headstart.cli.options import OUTPUT
from headstart.common.options import declares
from headstart.drafting import DEFAULT_DRAFTER
from headstart.entrypoints.engine_options import EngineOptions
from headstart.errors import ConfigError, HeadstartError
from headstart_server.arguments import api_keys
from headstart_train.commands import folders

if TYPE_CHECKING:
    from headstart.entrypoints.llm import LLM

LOAD = "Load"


@declares
class BenchedOptions(EngineOptions):
    """Of an engine that a server would run."""

    _defaults: ClassVar = {"prefix_caching": True, "tolerant": True, "generation_config": "none"}


@with_groups
def bench_serve(
    *,
    engine: BenchedOptions,
    url: Annotated[
        str | None,
        typer.Option(
            help="Measure the Headstart server at this address instead of starting one. It keeps its own "
            "settings, except --drafter.",
            metavar="URL",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="A file whose first line is that server's API key.", metavar="FILE")
    ] = None,
    concurrency: Annotated[
        str,
        typer.Option(
            help="Closed loop: numbers of users, each of whom asks again when answered; empty for none.",
            rich_help_panel=LOAD,
            metavar="C,C,...",
        ),
    ] = "1,2,4,8,16",
    rates: Annotated[
        str,
        typer.Option(
            help="Open loop: requests per second, which arrive at random (Poisson).",
            rich_help_panel=LOAD,
            metavar="R,R,...",
        ),
    ] = "",
    requests: Annotated[int, typer.Option(min=1, help="Requests of each run.", rich_help_panel=LOAD)] = 32,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often everything is measured; figures are medians over these runs.")
    ] = 1,
    predict: Annotated[
        bool,
        typer.Option(
            "--predict",
            help="Ask every question once beforehand, unmeasured, and send the answers along as predictions: what "
            "synthetic guesses from, and the most that suffix and auto can do.",
            rich_help_panel=LOAD,
        ),
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts in Spec-Bench's or SPEED-Bench's form; only first turns are asked. If left out: Headstart's "
            "own.",
            rich_help_panel=LOAD,
            metavar="FILE.jsonl",
        ),
    ] = None,
    max_tokens: options.MaxTokens = 64,
    ignore_eos: options.IgnoreEos = False,
    temperature: options.Temperature = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of arrivals, and of requests that sample.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the result as JSON and HTML into this directory.",
            rich_help_panel=OUTPUT,
            metavar="DIR",
            callback=folders.made_folder,
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a server under load, with speculation and without: throughput, time to the first token, inter-token
    latency.

    Under each load, the same requests are sent with speculation and without, one run right after the other; which goes
    first alternates. So what else the machine does hits both alike: trust the ratios. Neither run profits from another
    one's prefix cache or from what a drafter learnt in it. Ctrl-C ends the benchmark early and reports the loads that
    have been measured.

    Examples:

        headstart bench serve

        headstart bench serve --concurrency 1,4,16 --requests 64 --repeats 3 --out results

        headstart bench serve --concurrency "" --rates 0.5,1,2

        headstart bench serve --url http://127.0.0.1:8000 --drafter ngram

        headstart bench serve --drafter synthetic:rates=0.8,0.6,0.4 --predict
    """
    from headstart.cli.progress import Activity
    from headstart_lab.bench.load import Client, Load
    from headstart_lab.bench.load_report import exhibits, summarise, to_json
    from headstart_lab.bench.load_run import OFF, LoadRun, LoadSitting
    from headstart_lab.bench.prompts import read_prompts
    from headstart_lab.commands.exhibits import hand_out
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin

    loads = [Load(users=int(users)) for users in _numbers("--concurrency", concurrency, whole=True)]
    loads += [Load(rate=rate) for rate in _numbers("--rates", rates)]
    if not loads:
        raise ConfigError("--concurrency and --rates are both empty; name a load.")
    if engine.drafter in ("none", OFF):
        raise ConfigError(f"--drafter is {engine.drafter!r}; name one that guesses, to compare with none.")
    # A server that is there already knows its drafters itself.
    drafter = str(engine.check()[0] if url is None else engine.drafter or DEFAULT_DRAFTER)
    key = None if api_key_file is None else api_keys(api_key_file)[0]
    questions = [prompt.turns[0] for prompt in read_prompts(prompts)]
    fields = {"max_tokens": max_tokens, "ignore_eos": ignore_eos, "temperature": temperature, "seed": seed}
    where = Origin(computes_here=url is None)
    runs: list[LoadRun] = []
    interruption = Interruption("loads", repeats * len(loads), lambda: len(runs) // 2)

    def load_model() -> LLM:
        from headstart.entrypoints.llm import LLM

        llm = LLM.from_options(engine)
        activity.say(llm.memory.sentence())
        return llm

    with Activity(shown=not quiet, aloud=True) as activity, interruption.kept():
        activity.show("Starting the server" if url is None else f"Asking {url}")
        with _serving(load_model(), max_waiting=requests) if url is None else nullcontext(url) as address:
            client = Client(address, key)
            stats = client.get("/stats")
            sitting = LoadSitting(client, questions, drafter, requests, fields, seed)
            sitting.warm_up()
            if predict:
                activity.show("Asking for the answers")
                sitting.learn_answers()
            activity.show("Measuring", repeats * len(loads) * len(sitting.modes) * requests)
            sitting.run(loads, repeats, lambda answered: activity.advance(1, answered.tokens), runs)

    known = ("model", "backend", "max_context", "max_sequences")
    record = {
        "provenance": where.finished(),
        "server": {name: stats[name] for name in known if name in stats} | {"made_here": url is None},
        "settings": {
            "drafter": engine.drafter or drafter,
            "draft_tokens": engine.draft_tokens,
            "requests": requests,
            "repeats": repeats,
            "predict": predict,
            **fields,
            "prompts": "package" if prompts is None else prompts.name,
        },
        **interruption.record(),
    }
    summaries = summarise(runs)
    title = f"{record['server'].get('model', 'A server')} under load"
    shown = exhibits(summaries)
    hand_out(to_json(runs, summaries, record), shown, record, as_json, out, "bench-serve", title, interruption.sentence)
    interruption.end()


def _numbers(option: str, text: str, whole: bool = False) -> list[float]:
    """Positive numbers, separated by commas.

    Raises:
        ConfigError: one of them is not a positive number, or is too large.
    """
    numbers = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            numbers.append(float(int(part) if whole else part))
        except ValueError:
            numbers.append(0.0)
        if not 0 < numbers[-1] <= 10_000:
            kind = "whole numbers" if whole else "numbers"
            raise ConfigError(f"{option} holds {part!r}; give {kind} above 0 (up to 10000), by commas.")
    return numbers


@contextmanager
def _serving(llm: LLM, max_waiting: int) -> Iterator[str]:
    """Run a server in this process on a free port; yields its address.

    Raises:
        ConfigError: a package that serving needs is not installed.
        HeadstartError: the server does not start.
    """
    try:
        import uvicorn

        from headstart_server.app import create_app
        from headstart_server.settings import ServerSettings
    except ImportError as error:
        raise ConfigError(
            f"serving needs {error.name}; install headstart with its extra: headstart[server]."
        ) from error
    app = create_app(llm, ServerSettings(Path(llm.model.name).name), max_waiting=max_waiting)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="on", log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, name="headstart-server", daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise HeadstartError("the server did not start.")
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
