"""Options that commands share, each declared once; those of the engine are in ``engine_options``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headstart.drafting.speculation import GROUP

SPECULATION, SAMPLING, STOPPING, OUTPUT = GROUP, "Sampling", "Stopping", "Output"


def said(help: str, *flags: str, panel: str = SAMPLING, metavar: str | None = None) -> Any:
    """An option of a command: its help, what it is called if not as its parameter, and the heading it stands under."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, metavar=metavar)


Temperature = Annotated[float, said("0: greedy, the likeliest token each time.", "--temperature")]

MaxTokens = Annotated[int, said("Most output tokens.", "--max-tokens", panel=STOPPING, metavar="N")]
IgnoreEos = Annotated[bool, said("Do not stop at the model's end-of-sequence token.", "--ignore-eos", panel=STOPPING)]

Json = Annotated[bool, said("Print JSON, one object per line, instead of text.", "--json", panel=OUTPUT)]
Quiet = Annotated[bool, said("Print no progress and no summary to stderr.", "--quiet", "-q", panel=OUTPUT)]
