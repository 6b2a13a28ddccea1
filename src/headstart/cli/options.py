"""Options that commands share, each declared once; those of the engine are in ``engine_options``."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from headstart.common import enumerations
from headstart.drafting.speculation import GROUP
from headstart.entrypoints.engine_options import MODEL
from headstart.errors import ConfigError

SPECULATION, SAMPLING, STOPPING, OUTPUT = GROUP, "Sampling", "Stopping", "Output"

TruncatePrompt = Annotated[
    int | None,
    typer.Option(
        help="Keep only the last N tokens of each prompt; -1: as many as leave room for --max-tokens.",
        rich_help_panel=MODEL,
        metavar="N",
    ),
]

Temperature = Annotated[
    float,
    typer.Option("--temperature", help="0: greedy, the likeliest token each time.", rich_help_panel=SAMPLING),
]
AskedTemperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        help="0: greedy, the likeliest token each time. This and the four below, left out: what --generation-config "
        "says.",
        rich_help_panel=SAMPLING,
    ),
]
TopK = Annotated[
    int | None, typer.Option(help="Draw from the K likeliest tokens; 0: from all.", rich_help_panel=SAMPLING)
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Draw from the fewest likeliest tokens whose probabilities add up to P.", rich_help_panel=SAMPLING
    ),
]
MinP = Annotated[
    float | None,
    typer.Option(
        help="Draw only from tokens at least P times as likely as the likeliest one.", rich_help_panel=SAMPLING
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(help="Above 1: tokens that prompt or output hold become less likely.", rich_help_panel=SAMPLING),
]
PresencePenalty = Annotated[
    float, typer.Option(help="Subtracted from the logit of each token that the output holds.", rich_help_panel=SAMPLING)
]
FrequencyPenalty = Annotated[
    float, typer.Option(help="Subtracted once for each time that the output holds the token.", rich_help_panel=SAMPLING)
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(
        help="Add BIAS to the logit of token ID; -inf bans it. May be repeated.",
        rich_help_panel=SAMPLING,
        metavar="ID=BIAS",
    ),
]
AllowTokens = Annotated[
    list[int] | None,
    typer.Option(
        "--allow-token",
        help="Allow only the tokens named this way; may be repeated.",
        rich_help_panel=SAMPLING,
        metavar="ID",
    ),
]
BanTokens = Annotated[
    list[int] | None,
    typer.Option(
        "--ban-token", help="Never produce this token; may be repeated.", rich_help_panel=SAMPLING, metavar="ID"
    ),
]
BadWords = Annotated[
    list[str] | None,
    typer.Option(
        "--bad-word",
        help="Never produce this word, at the start or after a space; may be repeated.",
        rich_help_panel=SAMPLING,
        metavar="TEXT",
    ),
]
NoRepeatNgram = Annotated[
    int | None,
    typer.Option(
        "--no-repeat-ngram",
        "--no-repeat-ngram-size",
        help="No run of N tokens comes a second time, the prompt's included; 0: any may. Left out: the model's "
        "default.",
        rich_help_panel=SAMPLING,
        metavar="N",
    ),
]
EncoderNoRepeatNgram = Annotated[
    int | None,
    typer.Option(
        "--encoder-no-repeat-ngram",
        "--encoder-no-repeat-ngram-size",
        help="No run of N tokens of what the encoder reads (of the prompt, where there is none) is said; 0: any may. "
        "Left out: the model's default.",
        rich_help_panel=SAMPLING,
        metavar="N",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(help="The same seed gives the same output. Left out: a random one.", rich_help_panel=SAMPLING),
]
Samples = Annotated[
    int,
    typer.Option(
        "--n",
        help="Number of independent samples of each prompt; with --beams, of the best outputs.",
        rich_help_panel=SAMPLING,
    ),
]
BEAMS = "Beam search"
Beams = Annotated[
    int | None,
    typer.Option(
        help="Look for the likeliest outputs with so many beams, instead of drawing tokens; at most --batch-size.",
        rich_help_panel=BEAMS,
        metavar="N",
    ),
]
LengthPenalty = Annotated[
    float,
    typer.Option(
        help="Divide scores by the output's length to this power: above 0 favours long outputs.",
        rich_help_panel=BEAMS,
    ),
]
EarlyStopping = Annotated[
    enumerations.EarlyStopping,
    typer.Option(
        help="Stop as soon as N outputs have ended (yes), when the best beam falls behind them (no), or when none can "
        "overtake them at any length (never).",
        rich_help_panel=BEAMS,
    ),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        help="With --json: log-probabilities of each output token and of the K likeliest in its place; -1: of all.",
        rich_help_panel=SAMPLING,
        metavar="K",
    ),
]

PromptLogprobs = Annotated[
    int | None,
    typer.Option(help="With --json: the same for each prompt token.", rich_help_panel=SAMPLING, metavar="K"),
]

MaxTokens = Annotated[
    int, typer.Option("--max-tokens", help="Most output tokens.", rich_help_panel=STOPPING, metavar="N")
]
AskedMaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        help="Most output tokens. Left out: the model's default, 256 if it has none.",
        rich_help_panel=STOPPING,
        metavar="N",
    ),
]
MinTokens = Annotated[
    int,
    typer.Option(help="Fewest output tokens: nothing ends the output before.", rich_help_panel=STOPPING, metavar="N"),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        help="Stop where this text appears, and leave it out; may be repeated.",
        rich_help_panel=STOPPING,
        metavar="TEXT",
    ),
]
IncludeStop = Annotated[
    bool, typer.Option("--include-stop", help="Keep the --stop text in the output.", rich_help_panel=STOPPING)
]
StopTokens = Annotated[
    list[int] | None,
    typer.Option(
        "--stop-token", help="Stop after this token; may be repeated.", rich_help_panel=STOPPING, metavar="ID"
    ),
]
IgnoreEos = Annotated[
    bool,
    typer.Option("--ignore-eos", help="Do not stop at the model's end-of-sequence token.", rich_help_panel=STOPPING),
]

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, one object per line, instead of text.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress and no summary to stderr.", rich_help_panel=OUTPUT)
]


def made_folder(option: typer.CallbackParam, out: Path | None) -> Path | None:
    """Make the folder that an option names before anything slow is done, not when its results would be lost.

    Raises:
        ConfigError: it cannot be made or written.
    """
    if out is None:
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except OSError as error:
        name = option.opts[0]
        raise ConfigError(f"{name} is {out}, a folder that cannot be written: {error.strerror}.") from error
    return out


def new_folder(option: typer.CallbackParam, out: Path) -> Path:
    """The folder of a command that writes a whole model or head: what lies in a folder is not written over.

    Raises:
        ConfigError: it holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{option.opts[0]} is {out}, which exists already; name a new folder, or empty it.")
    return out
