"""How tokens are drawn, as commands that generate text take it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from headstart.cli.options import SAMPLING, STOPPING, IgnoreEos
from headstart.common import enumerations
from headstart.entrypoints.engine_options import MODEL

BEAMS = "Beam search"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options of a command (``option_groups``), named like the fields of ``SamplingParams``."""

    truncate_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "--truncate-prompt",
            help="Keep only the last N tokens of each prompt; -1: as many as leave room for --max-tokens.",
            rich_help_panel=MODEL,
            metavar="N",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            help="0: greedy, the likeliest token each time. This and the four below, left out: what "
            "--generation-config says.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="Draw from the K likeliest tokens; 0: from all.", rich_help_panel=SAMPLING)
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Draw from the fewest likeliest tokens whose probabilities add up to P.", rich_help_panel=SAMPLING
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Draw only from tokens at least P times as likely as the likeliest one.", rich_help_panel=SAMPLING
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Above 1: tokens that prompt or output hold become less likely.", rich_help_panel=SAMPLING),
    ] = None
    presence_penalty: Annotated[
        float,
        typer.Option(help="Subtracted from the logit of each token that the output holds.", rich_help_panel=SAMPLING),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        typer.Option(help="Subtracted once for each time that the output holds the token.", rich_help_panel=SAMPLING),
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            help="Add BIAS to the logit of token ID; -inf bans it. May be repeated.",
            rich_help_panel=SAMPLING,
            metavar="ID=BIAS",
        ),
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--allow-token",
            help="Allow only the tokens named this way; may be repeated.",
            rich_help_panel=SAMPLING,
            metavar="ID",
        ),
    ] = None
    banned_token_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--ban-token", help="Never produce this token; may be repeated.", rich_help_panel=SAMPLING, metavar="ID"
        ),
    ] = None
    bad_words: Annotated[
        list[str] | None,
        typer.Option(
            "--bad-word",
            help="Never produce this word, at the start or after a space; may be repeated.",
            rich_help_panel=SAMPLING,
            metavar="TEXT",
        ),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None,
        typer.Option(
            "--no-repeat-ngram",
            "--no-repeat-ngram-size",
            help="No run of N tokens comes a second time, the prompt's included; 0: any may. Left out: the model's "
            "default.",
            rich_help_panel=SAMPLING,
            metavar="N",
        ),
    ] = None
    encoder_no_repeat_ngram_size: Annotated[
        int | None,
        typer.Option(
            "--encoder-no-repeat-ngram",
            "--encoder-no-repeat-ngram-size",
            help="No run of N tokens of what the encoder reads (of the prompt, where there is none) is said; 0: any "
            "may. Left out: the model's default.",
            rich_help_panel=SAMPLING,
            metavar="N",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(help="The same seed gives the same output. Left out: a random one.", rich_help_panel=SAMPLING),
    ] = None
    n: Annotated[
        int,
        typer.Option(
            "--n",
            help="Number of independent samples of each prompt; with --beams, of the best outputs.",
            rich_help_panel=SAMPLING,
        ),
    ] = 1
    beam_width: Annotated[
        int | None,
        typer.Option(
            "--beams",
            help="Look for the likeliest outputs with so many beams, instead of drawing tokens; at most --batch-size.",
            rich_help_panel=BEAMS,
            metavar="N",
        ),
    ] = None
    length_penalty: Annotated[
        float,
        typer.Option(
            help="Divide scores by the output's length to this power: above 0 favours long outputs.",
            rich_help_panel=BEAMS,
        ),
    ] = 1.0
    early_stopping: Annotated[
        enumerations.EarlyStopping,
        typer.Option(
            help="Stop as soon as N outputs have ended (yes), when the best beam falls behind them (no), or when none "
            "can overtake them at any length (never).",
            rich_help_panel=BEAMS,
        ),
    ] = enumerations.EarlyStopping.NO
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="With --json: log-probabilities of each output token and of the K likeliest in its place; -1: of all.",
            rich_help_panel=SAMPLING,
            metavar="K",
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        typer.Option(help="With --json: the same for each prompt token.", rich_help_panel=SAMPLING, metavar="K"),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            help="Most output tokens. Left out: the model's default, 256 if it has none.",
            rich_help_panel=STOPPING,
            metavar="N",
        ),
    ] = None
    min_tokens: Annotated[
        int,
        typer.Option(
            help="Fewest output tokens: nothing ends the output before.", rich_help_panel=STOPPING, metavar="N"
        ),
    ] = 0
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="Stop where this text appears, and leave it out; may be repeated.",
            rich_help_panel=STOPPING,
            metavar="TEXT",
        ),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, typer.Option("--include-stop", help="Keep the --stop text in the output.", rich_help_panel=STOPPING)
    ] = False
    stop_token_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--stop-token", help="Stop after this token; may be repeated.", rich_help_panel=STOPPING, metavar="ID"
        ),
    ] = None
    ignore_eos: IgnoreEos = False

    def given(self) -> dict[str, Any]:
        """Fields of ``SamplingParams`` that were given.

        Raises:
            BadParameter: one is not of its form.
        """
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        found = {name: value for name, (value, default) in values.items() if value not in (default, None, [])}
        if self.logit_bias:
            found["logit_bias"] = dict(map(_token_bias, self.logit_bias))
        if "early_stopping" in found:
            found["early_stopping"] = self.early_stopping.value_of_params
        return found


def _token_bias(text: str) -> tuple[int, float]:
    """``ID=BIAS``.

    Raises:
        BadParameter: it is something else.
    """
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not of the form ID=BIAS, like 42=-1.5.", param_hint="--logit-bias"
        ) from None
