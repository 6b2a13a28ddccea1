"""How tokens are drawn, as commands that generate text take it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from headstart.cli.options import STOPPING, IgnoreEos, said
from headstart.common import enumerations
from headstart.entrypoints.engine_options import MODEL

BEAMS = "Beam search"


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Options of a command (``option_groups``), named like the fields of ``SamplingParams``."""

    truncate_prompt_tokens: Annotated[
        int | None,
        said(
            "Keep only the last N tokens of each prompt; -1: as many as leave room for --max-tokens.",
            "--truncate-prompt",
            panel=MODEL,
            metavar="N",
        ),
    ] = None
    temperature: Annotated[
        float | None,
        said(
            "0: greedy, the likeliest token each time. This and the four below, left out: what "
            "--generation-config says.",
            "--temperature",
        ),
    ] = None
    top_k: Annotated[int | None, said("Draw from the K likeliest tokens; 0: from all.")] = None
    top_p: Annotated[float | None, said("Draw from the fewest likeliest tokens whose probabilities add up to P.")] = (
        None
    )
    min_p: Annotated[float | None, said("Draw only from tokens at least P times as likely as the likeliest one.")] = (
        None
    )
    repetition_penalty: Annotated[
        float | None, said("Above 1: tokens that prompt or output hold become less likely.")
    ] = None
    presence_penalty: Annotated[float, said("Subtracted from the logit of each token that the output holds.")] = 0.0
    frequency_penalty: Annotated[float, said("Subtracted once for each time that the output holds the token.")] = 0.0
    logit_bias: Annotated[
        list[str] | None, said("Add BIAS to the logit of token ID; -inf bans it. May be repeated.", metavar="ID=BIAS")
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, said("Allow only the tokens named this way; may be repeated.", "--allow-token", metavar="ID")
    ] = None
    banned_token_ids: Annotated[
        list[int] | None, said("Never produce this token; may be repeated.", "--ban-token", metavar="ID")
    ] = None
    bad_words: Annotated[
        list[str] | None,
        said("Never produce this word, at the start or after a space; may be repeated.", "--bad-word", metavar="TEXT"),
    ] = None
    no_repeat_ngram_size: Annotated[
        int | None,
        said(
            "No run of N tokens comes a second time, the prompt's included; 0: any may. Left out: the model's default.",
            "--no-repeat-ngram",
            "--no-repeat-ngram-size",
            metavar="N",
        ),
    ] = None
    encoder_no_repeat_ngram_size: Annotated[
        int | None,
        said(
            "No run of N tokens of what the encoder reads (of the prompt, where there is none) is said; 0: any "
            "may. Left out: the model's default.",
            "--encoder-no-repeat-ngram",
            "--encoder-no-repeat-ngram-size",
            metavar="N",
        ),
    ] = None
    seed: Annotated[int | None, said("The same seed gives the same output. Left out: a random one.")] = None
    n: Annotated[
        int, said("Number of independent samples of each prompt; with --beams, of the best outputs.", "--n")
    ] = 1
    beam_width: Annotated[
        int | None,
        said(
            "Look for the likeliest outputs with so many beams, instead of drawing tokens; at most --batch-size.",
            "--beams",
            panel=BEAMS,
            metavar="N",
        ),
    ] = None
    length_penalty: Annotated[
        float, said("Divide scores by the output's length to this power: above 0 favours long outputs.", panel=BEAMS)
    ] = 1.0
    early_stopping: Annotated[
        enumerations.EarlyStopping,
        said(
            "Stop as soon as N outputs have ended (yes), when the best beam falls behind them (no), or when none "
            "can overtake them at any length (never).",
            panel=BEAMS,
        ),
    ] = enumerations.EarlyStopping.NO
    logprobs: Annotated[
        int | None,
        said(
            "With --json: log-probabilities of each output token and of the K likeliest in its place; -1: of all.",
            metavar="K",
        ),
    ] = None
    prompt_logprobs: Annotated[int | None, said("With --json: the same for each prompt token.", metavar="K")] = None
    max_tokens: Annotated[
        int | None,
        said(
            "Most output tokens. Left out: the model's default, 256 if it has none.",
            "--max-tokens",
            panel=STOPPING,
            metavar="N",
        ),
    ] = None
    min_tokens: Annotated[
        int, said("Fewest output tokens: nothing ends the output before.", panel=STOPPING, metavar="N")
    ] = 0
    stop: Annotated[
        list[str] | None,
        said("Stop where this text appears, and leave it out; may be repeated.", panel=STOPPING, metavar="TEXT"),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, said("Keep the --stop text in the output.", "--include-stop", panel=STOPPING)
    ] = False
    stop_token_ids: Annotated[
        list[int] | None, said("Stop after this token; may be repeated.", "--stop-token", panel=STOPPING, metavar="ID")
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
