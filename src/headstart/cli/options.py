"""Options that commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from headstart import enumerations
from headstart.drafting import DEFAULT_DRAFTER
from headstart.errors import ConfigError

MODEL, SPECULATION, SAMPLING, STOPPING, OUTPUT = "Model", "Speculation", "Sampling", "Stopping", "Output"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="The target model: an alias, a directory, a hub id or a .gguf file.",
        rich_help_panel=MODEL,
        metavar="M",
    ),
]
Revision = Annotated[
    str | None, typer.Option(help="Branch, tag or commit of a model on the hub.", rich_help_panel=MODEL, metavar="REV")
]
Precision = Annotated[
    enumerations.Precision,
    typer.Option(
        help="Number format to compute in. auto: bf16 where the native pass runs (a GGUF's own blocks, unless there is "
        "a matrix unit), else fp32.",
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Where to compute: cpu, or by PyTorch an accelerator, as cuda, cuda:1 or mps.",
        rich_help_panel=MODEL,
        metavar="DEVICE",
    ),
]
Backend = Annotated[
    enumerations.BackendChoice,
    typer.Option(
        help="Whose code computes the model. transformers: that of the package, which runs any decoder that it knows, "
        "slower. auto: Headstart's own where it has a description of the model, else transformers'.",
        rich_help_panel=MODEL,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run Python code that comes with a model, where transformers needs it. Read it first.",
        rich_help_panel=MODEL,
    ),
]
Lora = Annotated[
    str | None,
    typer.Option(
        "--lora",
        help="Folder of a LoRA adapter, as peft saves it, to be merged into the model.",
        rich_help_panel=MODEL,
        metavar="DIR",
    ),
]
CudaGraphs = Annotated[
    bool,
    typer.Option(
        "--cuda-graphs/--no-cuda-graphs",
        help="With --device cuda: record passes of shapes that come again as CUDA graphs, for up to 1 GiB of the "
        "card's memory.",
        rich_help_panel=MODEL,
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        help="How messages are written, in place of the model's own template: a file of Jinja, or the template itself.",
        rich_help_panel=MODEL,
        metavar="FILE",
    ),
]
Numerics = Annotated[
    enumerations.Numerics,
    typer.Option(
        help="exact: refuse to run unless a token's logits are the same bits in every pass (native pass only). auto: "
        "exact where the native pass runs; elsewhere rounding may decide between nearly equal logits.",
        rich_help_panel=MODEL,
    ),
]
BatchSize = Annotated[
    int,
    typer.Option(
        "--batch-size", "--max-num-seqs", min=1, help="How many prompts decode together.", rich_help_panel=MODEL
    ),
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        "--max-context",
        "--max-model-len",
        min=2,
        help="Most prompt and output tokens together. Left out: what the model was made for, at most 8192.",
        rich_help_panel=MODEL,
    ),
]

TruncatePrompt = Annotated[
    int | None,
    typer.Option(
        help="Keep only the last N tokens of each prompt; -1: as many as leave room for --max-tokens.",
        rich_help_panel=MODEL,
        metavar="N",
    ),
]

Drafter = Annotated[
    str,
    typer.Option(
        "--drafter",
        "-d",
        help="The drafter (`headstart drafters` lists them), with options after its name, like ngram:max_order=2. "
        "none: no speculation.",
        rich_help_panel=SPECULATION,
        metavar="NAME",
    ),
]
AskedDrafter = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        "-d",
        help="The drafter (`headstart drafters` lists them), with options after its name, like ngram:max_order=2. "
        f"none: no speculation. Left out: {DEFAULT_DRAFTER}, or what runs --draft-model if that is a whole model.",
        rich_help_panel=SPECULATION,
        metavar="NAME",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        help="The draft model or trained head that the drafter runs; named like --model.",
        rich_help_panel=SPECULATION,
        metavar="M",
    ),
]
DraftPrecision = Annotated[
    enumerations.Precision | None,
    typer.Option(help="Number format of the draft model. Left out: the target's.", rich_help_panel=SPECULATION),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(
        min=0, help="Most tokens guessed ahead (the depth of a draft).", rich_help_panel=SPECULATION, metavar="K"
    ),
]
TreeNodes = Annotated[
    int | None,
    typer.Option(
        min=0, help="Most guesses in a draft tree, all branches together.", rich_help_panel=SPECULATION, metavar="N"
    ),
]
DrafterOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter-option",
        help="An option of the drafter, like max_order=3 (`headstart drafters NAME` lists them); may be repeated.",
        rich_help_panel=SPECULATION,
        metavar="KEY=VALUE",
    ),
]
Verify = Annotated[
    enumerations.VerifyRule,
    typer.Option(
        help="How guesses that were drawn at random are checked. Every rule keeps the distribution; coupled also "
        "keeps the very tokens of plain decoding with the same seed.",
        rich_help_panel=SPECULATION,
    ),
]
Lenience = Annotated[
    float | None,
    typer.Option(
        help="LOSSY: also accept guesses that the target finds less likely than the draft does, by up to this factor "
        "in (0, 1]. The output no longer follows the target's law.",
        rich_help_panel=SPECULATION,
        metavar="L",
    ),
]
Typical = Annotated[
    float | None,
    typer.Option(
        help="LOSSY: Medusa's typical acceptance, which keeps every guess that the target finds plausible; epsilon in "
        "(0, 1), 0.09 in the paper. The output no longer follows the target's law, unless temperature is 0.",
        rich_help_panel=SPECULATION,
        metavar="EPSILON",
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
GenerationConfig = Annotated[
    str,
    typer.Option(
        help="Where what is left out comes from. auto: the model's own defaults, modest ones if it has none; none: "
        "temperature 1 and no cuts; or a generation_config.json, or its folder.",
        rich_help_panel=SAMPLING,
        metavar="auto|none|PATH",
    ),
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


def layer_choice(text: str) -> int | tuple[int, ...]:
    """Layers as ``--layers`` names them: how many, or which.

    Raises:
        BadParameter: neither a number nor a list of them.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a number nor a list of them, like 10 or 0,1,14,29.", param_hint="--layers"
        ) from None
    return numbers if "," in text else numbers[0]


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


def first_key(path: Path) -> str:
    """The first API key of a file.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    from headstart.server.access import read_keys

    try:
        keys = read_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file is {path}, which cannot be read: {error}.") from error
    if not keys:
        raise ConfigError(f"--api-key-file is {path}, which holds no key.")
    return keys[0]
