"""``headstart lab``: the lab page as files that need no server, with runs measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.option_groups import with_groups
from headstart.entrypoints.engine_options import EngineOptions
from headstart.errors import ConfigError
from headstart_train.commands import folders

PAGE = "Page"
_TITLE_WORDS = 4


def _page_folder(option: typer.CallbackParam, export: Path) -> Path | None:
    return folders.made_folder(option, folders.new_folder(option, export))


@with_groups
def lab(
    *,
    export: Annotated[
        Path,
        typer.Option(
            help="The folder to write; index.html in it is the page.",
            metavar="DIR",
            callback=_page_folder,
            rich_help_panel=PAGE,
        ),
    ],
    record: Annotated[
        list[str] | None,
        typer.Option(
            "--record",
            help="A prompt to answer, with speculation and plainly in turns, for the page to play; may be repeated. "
            "If left out: the runs that come with Headstart.",
            rich_help_panel=PAGE,
            metavar="PROMPT",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of a recorded answer.", rich_help_panel=PAGE, metavar="N")
    ] = 96,
    engine: EngineOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write the page that shows speculation at work as static files: draft, verify, accept, and a race against plain
    decoding.

    It plays recorded runs in any browser, from any host or straight from the folder, without a server. To ask a model
    something on the page, run `headstart serve` and open its address.

    Examples:

        headstart lab --export page

        headstart lab --export page --record "Name ten rivers." --max-tokens 64

        headstart lab --export page --record "Name ten rivers." --record "Name ten lakes." --drafter suffix
    """
    if any(not prompt.strip() for prompt in record or ()):
        raise typer.BadParameter("it is empty; give a message.", param_hint="--record")
    from headstart_lab.page.static_page import recorded_runs, static_page

    runs: list[dict[str, Any]] = []
    if record:
        from headstart.cli.progress import Activity
        from headstart.entrypoints.llm import LLM
        from headstart_lab.page.recording import PAIRS
        from headstart_lab.page.recording import record as record_run

        with Activity(shown=not quiet) as activity:
            activity.show(f"Loading {engine.model}")
            with LLM.from_options(engine) as llm:
                activity.show("Recording", len(record) * (PAIRS + 1))
                for prompt in record:
                    runs.append(
                        record_run(llm, _title(prompt), prompt, max_tokens, lambda: activity.advance_saying(1, ""))
                    )
    pages = static_page(runs or recorded_runs())
    try:
        for file, text in pages.items():
            (export / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--export is {export}, which cannot be written: {error.strerror}.") from error
    if as_json:
        from headstart.cli.json_output import print_json

        print_json({"directory": str(export), "page": str(export / "index.html"), "recorded": runs})
    elif not quiet:
        typer.echo(f"Wrote {export / 'index.html'}; open it in a browser.", err=True)


def _title(prompt: str) -> str:
    """A prompt's first words."""
    words = prompt.split()
    return " ".join(words[:_TITLE_WORDS]) + (" …" if len(words) > _TITLE_WORDS else "")
