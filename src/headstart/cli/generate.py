"""``headstart generate``: decode prompts, plainly or with speculation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.asking import Asked, refuse_if_none, require_template, warn_of_losses
from headstart.cli.option_groups import with_groups
from headstart.cli.options import OUTPUT, said
from headstart.cli.sampling import SamplingOptions
from headstart.entrypoints.engine_options import EngineOptions

if TYPE_CHECKING:
    from headstart.cli.comparing import Comparator
    from headstart.cli.progress import Activity
    from headstart.cli.prompts import Conversation
    from headstart.cli.showing import Live
    from headstart.drafting.base import SpeculationParams
    from headstart.entrypoints.llm import LLM
    from headstart.sampling.params import SamplingParams

PROMPT_PANEL = "Prompt"


@with_groups
def generate(
    *,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="The text to continue, or the message to answer; - (or nothing): what is piped in."
        ),
    ] = None,
    prompt_option: Annotated[
        str | None, said("The same as PROMPT.", "--prompt", "-p", panel=PROMPT_PANEL, metavar="PROMPT")
    ] = None,
    prompts: Annotated[
        str | None,
        said(
            "Answer each line of a file instead (- for stdin): a JSON object with prompt, messages or turns.",
            panel=PROMPT_PANEL,
            metavar="FILE.jsonl",
        ),
    ] = None,
    chat: Annotated[
        bool, said("The prompt is a user's message to a chat model.", "--chat", panel=PROMPT_PANEL)
    ] = False,
    system: Annotated[
        str | None, said("System message of a chat; means --chat.", panel=PROMPT_PANEL, metavar="TEXT")
    ] = None,
    decoder_prompt: Annotated[
        str | None,
        said(
            "What outputs begin with, where the model has an encoder, which reads the prompt.",
            panel=PROMPT_PANEL,
            metavar="TEXT",
        ),
    ] = None,
    src_lang: Annotated[
        str | None, said("Language of the prompt, of a model that translates.", panel=PROMPT_PANEL, metavar="NAME")
    ] = None,
    tgt_lang: Annotated[
        str | None, said("Language of the output, likewise.", panel=PROMPT_PANEL, metavar="NAME")
    ] = None,
    engine: EngineOptions,
    sampling: SamplingOptions,
    compare: Annotated[
        bool,
        said(
            "Also decode without speculation; show whether the tokens are the same, and the speed-up.",
            "--compare",
            panel=OUTPUT,
        ),
    ] = False,
    show_drafts: Annotated[
        bool,
        said(
            "Colour the text: green guessed and accepted, red guessed and rejected, blue the model's own token "
            "after a guess.",
            "--show-drafts",
            panel=OUTPUT,
        ),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Continue a prompt, answer a message, or work through a file of them.

    Text streams to stdout as it is decoded; progress, a summary and warnings go to stderr. Sampling that is left out is
    the model's own (--generation-config). With --temperature 0 the same prompt always gives the same text, whatever the
    drafter, and with a --seed the same draws.

    Examples:

        headstart generate "Once upon a time"

        headstart generate --chat "Why is the sky blue?" --temperature 0.7 --top-p 0.9 --seed 1

        headstart generate --chat "Repeat after me: ..." --drafter prompt-lookup --show-drafts

        headstart generate --chat "Name ten rivers." --compare

        cat notes.txt | headstart generate --chat --system "Summarize the notes."

        headstart generate --chat "Translate to French: Good morning." --beams 4

        headstart generate --prompts questions.jsonl --json > answers.jsonl

        headstart generate --model ./nllb-200 "How are you?" --decoder-prompt "fra_Latn"
    """
    if prompt is not None and prompt_option is not None:
        raise typer.BadParameter("the prompt is given twice; leave one out.", param_hint="--prompt")
    prompt = prompt_option if prompt is None else prompt
    prompt = _piped() if prompt is None and prompts is None else prompt
    _check_together(prompt, prompts, show_drafts, as_json, sampling)
    given = sampling.given()
    asked = Asked(engine, given)
    if chat or system is not None:
        require_template(engine)
    conversations = _conversations(prompt, prompts, chat or system is not None, system)
    for conversation in conversations:
        for name, value in (("decoder_prompt", decoder_prompt), ("src_lang", src_lang), ("tgt_lang", tgt_lang)):
            if getattr(conversation, name) is None:
                setattr(conversation, name, value)

    from headstart.cli.progress import Activity

    with Activity(shown=not quiet) as activity:
        activity.show(f"Looking at {engine.model}")
        params, speculation, outline = asked.checked(conversations)
        activity.stop()
        refuse_if_none(conversations, quiet)
        warn_of_losses(engine, speculation, params)
        if not quiet:
            _remark(params, given)
        llm = asked.load(activity, outline)
        from headstart.cli.answering import Clock, answer_all
        from headstart.cli.reports import JsonReport, Report, TextReport
        from headstart.sampling.noise import fresh_seed

        if compare:
            # Sampled outputs can be compared at one seed only.
            params = replace(params, seed=fresh_seed() if sampling.seed is None else sampling.seed)
        comparator = _warm_comparator(llm, params, speculation, activity) if compare else None
        report: Report
        if as_json:
            report = JsonReport(llm, activity, comparator)
        else:
            live = (
                _live(llm, conversations[0], params, show_drafts, quiet) if prompts is None and params.n == 1 else None
            )
            report = TextReport(llm, activity, comparator, live)
        clock = Clock()
        try:
            answer_all(llm, conversations, params, speculation, report, compare=compare, clock=clock)
        except BaseException as error:
            activity.stop()
            report.break_line()
            if isinstance(error, KeyboardInterrupt) and clock.turns.plain:
                report.close(clock, quiet)
            raise
    report.close(clock, quiet)
    if report.failures:
        raise typer.Exit(1)


def _piped() -> str | None:
    """The prompt that was piped in without being named; None: nothing was."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    from headstart.cli.prompts import read_stdin

    return read_stdin() or None


def _check_together(
    prompt: str | None, prompts: str | None, show_drafts: bool, as_json: bool, sampling: SamplingOptions
) -> None:
    """Refuse options that do not go together.

    Raises:
        BadParameter: which.
    """
    if (prompt is None) == (prompts is None):
        raise typer.BadParameter("give either a prompt or --prompts FILE.", param_hint="PROMPT")
    if show_drafts and (prompt is None or sampling.n != 1 or as_json):
        raise typer.BadParameter(
            "it shows one sample of one prompt; leave out --prompts, --n and --json.", param_hint="--show-drafts"
        )
    for name, wanted in (("--logprobs", sampling.logprobs), ("--prompt-logprobs", sampling.prompt_logprobs)):
        if wanted is not None and not as_json:
            raise typer.BadParameter("log-probabilities come with --json; add it.", param_hint=name)


def _conversations(prompt: str | None, prompts: str | None, chat: bool, system: str | None) -> list[Conversation]:
    """What to answer: the prompt, or where there is none, each line of the file."""
    from headstart.cli.prompts import one_prompt, read_prompts

    if prompts is not None:
        return read_prompts(prompts, chat, system)
    assert prompt is not None
    return [one_prompt(prompt, chat, system)]


def _warm_comparator(
    llm: LLM, params: SamplingParams, speculation: SpeculationParams, activity: Activity
) -> Comparator:
    from headstart.cli.comparing import Comparator

    comparator = Comparator(llm, params, speculation)
    activity.show("Warming up")
    comparator.warm_up()
    activity.stop()
    return comparator


def _live(llm: LLM, conversation: Conversation, params: SamplingParams, show_drafts: bool, quiet: bool) -> Live:
    """What shows the answer to the command line's prompt while it is decoded."""
    from headstart.cli.showing import DraftText, PlainText

    if not show_drafts:
        return PlainText()
    drafts = DraftText(llm.model.tokenizer, conversation.request(llm, 0).token_ids, params)
    if not quiet:
        typer.echo(drafts.legend, err=True)
    return drafts


def _remark(params: SamplingParams, given: Mapping[str, Any]) -> None:
    """Say on stderr which of the options given are without effect."""
    if not params.greedy or params.use_beam_search:
        return
    idle = {
        "--top-k": given.get("top_k", 0) != 0,
        "--top-p": given.get("top_p", 1) != 1,
        "--min-p": given.get("min_p", 0) != 0,
        "--n": params.n > 1,
    }
    if any(idle.values()):
        named = ", ".join(option for option, is_idle in idle.items() if is_idle)
        typer.echo(f"Note: at temperature 0 {named} changes nothing; give a --temperature above it.", err=True)
