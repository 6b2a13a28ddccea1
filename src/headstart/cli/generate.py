"""``headstart generate``: decode prompts, plainly or with speculation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli import options
from headstart.cli.options import OUTPUT, NumericsChoice, PrecisionChoice, VerifyChoice
from headstart.drafting import DEFAULT_DRAFTER
from headstart.drafting.options import option_value, parse_drafter
from headstart.models.aliases import DEFAULT_MODEL

if TYPE_CHECKING:
    from headstart.cli.comparing import Comparator
    from headstart.cli.progress import Activity
    from headstart.cli.prompts import Conversation
    from headstart.cli.showing import Live
    from headstart.drafting.base import SpeculationParams
    from headstart.llm import LLM
    from headstart.sampling.params import SamplingParams


def generate(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The text to continue, or the message to answer; - reads it from stdin."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="Answer each line of a file instead (- for stdin): a JSON object with prompt, messages or turns.",
            metavar="FILE.jsonl",
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message to a chat model.")] = False,
    system: Annotated[str | None, typer.Option(help="System message of a chat; means --chat.", metavar="TEXT")] = None,
    model: options.Model = DEFAULT_MODEL,
    revision: options.Revision = None,
    precision: options.Precision = PrecisionChoice.AUTO,
    numerics: options.Numerics = NumericsChoice.AUTO,
    batch_size: options.BatchSize = 16,
    max_context: options.MaxContext = None,
    truncate_prompt: options.TruncatePrompt = None,
    drafter: options.Drafter = DEFAULT_DRAFTER,
    draft_model: options.DraftModel = None,
    draft_precision: options.DraftPrecision = None,
    draft_tokens: options.DraftTokens = None,
    tree_nodes: options.TreeNodes = None,
    drafter_option: options.DrafterOptions = None,
    verify: options.Verify = VerifyChoice.AUTO,
    lenience: options.Lenience = None,
    typical: options.Typical = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    presence_penalty: options.PresencePenalty = 0.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    logit_bias: options.LogitBias = None,
    allow_token: options.AllowTokens = None,
    ban_token: options.BanTokens = None,
    bad_word: options.BadWords = None,
    seed: options.Seed = None,
    n: options.Samples = 1,
    logprobs: options.Logprobs = None,
    prompt_logprobs: options.PromptLogprobs = None,
    max_tokens: options.MaxTokens = 256,
    min_tokens: options.MinTokens = 0,
    stop: options.Stop = None,
    include_stop: options.IncludeStop = False,
    stop_token: options.StopTokens = None,
    ignore_eos: options.IgnoreEos = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Also decode without speculation; show whether the tokens are the same, and the speed-up.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    show_drafts: Annotated[
        bool,
        typer.Option(
            "--show-drafts",
            help="Colour the text: green guessed and accepted, red guessed and rejected, blue the model's own token "
            "after a guess.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Continue a prompt, answer a message, or work through a file of them.

    Text streams to stdout as it is decoded; progress, a summary and warnings go to stderr. Without further options
    decoding is greedy, so the same prompt always gives the same text, whatever the drafter.

    Examples:

        headstart generate "Once upon a time"

        headstart generate --chat "Why is the sky blue?" --temperature 0.7 --top-p 0.9 --seed 1

        headstart generate --chat "Repeat after me: ..." --drafter prompt-lookup --show-drafts

        headstart generate --chat "Name ten rivers." --compare

        cat notes.txt | headstart generate --chat --system "Summarize the notes." -

        headstart generate --prompts questions.jsonl --json > answers.jsonl
    """
    _check_together(prompt, prompts, show_drafts, n, as_json, logprobs, prompt_logprobs)

    from headstart.cli.progress import Activity
    from headstart.sampling.params import SamplingParams

    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=dict(_bias(text) for text in logit_bias or ()),
        allowed_token_ids=tuple(allow_token) if allow_token else None,
        banned_token_ids=tuple(ban_token or ()),
        bad_words=tuple(bad_word or ()),
        min_tokens=min_tokens,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        include_stop_str_in_output=include_stop,
        stop_token_ids=tuple(stop_token or ()),
        ignore_eos=ignore_eos,
        seed=seed,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        truncate_prompt_tokens=truncate_prompt,
    )
    drafter, drafter_options = parse_drafter(drafter)
    drafter_options |= dict(_drafter_option(text) for text in drafter_option or ())
    conversations = _conversations(prompt, prompts, chat or system is not None, system)
    _remark(params, lenience, typical, quiet)

    with Activity(shown=not quiet) as activity:
        activity.show(f"Loading {model}")
        from headstart.cli.answering import answer_all
        from headstart.cli.reports import JsonReport, Report, TextReport
        from headstart.drafting.base import SpeculationParams
        from headstart.llm import LLM
        from headstart.sampling.noise import fresh_seed
        from headstart.verification.base import VerifyRule

        speculation = SpeculationParams(
            draft_tokens=draft_tokens,
            tree_nodes=tree_nodes,
            verify=VerifyRule(verify.value),
            lenience=lenience,
            typical=typical,
        )
        llm = LLM(
            model,
            drafter,
            draft_model=draft_model,
            draft_tokens=draft_tokens or None,
            drafter_options=drafter_options,
            speculation=speculation,
            precision=precision.value,
            draft_precision=None if draft_precision is None else draft_precision.value,
            numerics=numerics.value,
            max_context=max_context,
            max_batch_size=batch_size,
            revision=revision,
        )
        activity.stop()
        for sentence in (*llm.notices, llm.memory.sentence()):
            activity.say(sentence)

        if compare:
            # Sampled outputs can be compared at one seed only.
            params = replace(params, seed=fresh_seed() if seed is None else seed)
        comparator = _warm_comparator(llm, params, speculation, activity) if compare else None
        report: Report
        if as_json:
            report = JsonReport(llm, activity, comparator)
        else:
            live = _live(llm, conversations[0], params, show_drafts, quiet) if prompts is None and n == 1 else None
            report = TextReport(llm, activity, comparator, live)
        clock = answer_all(llm, conversations, params, speculation, report, compare=compare)
    report.close(clock, quiet)
    if report.failures:
        raise typer.Exit(1)


def _check_together(
    prompt: str | None,
    prompts: str | None,
    show_drafts: bool,
    n: int,
    as_json: bool,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> None:
    """Refuse options that do not go together.

    Raises:
        BadParameter: which.
    """
    if (prompt is None) == (prompts is None):
        raise typer.BadParameter("give either a prompt or --prompts FILE.", param_hint="PROMPT")
    if show_drafts and (prompt is None or n != 1 or as_json):
        raise typer.BadParameter(
            "it shows one sample of one prompt; leave out --prompts, --n and --json.", param_hint="--show-drafts"
        )
    for name, wanted in (("--logprobs", logprobs), ("--prompt-logprobs", prompt_logprobs)):
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


def _remark(params: SamplingParams, lenience: float | None, typical: float | None, quiet: bool) -> None:
    """Say on stderr what the options lose, or leave without effect."""
    lossy = {
        "--lenience": lenience is not None and lenience < 1,
        "--typical": typical is not None and not params.greedy,
    }
    for name in (name for name, asked_for in lossy.items() if asked_for):
        typer.echo(f"Warning: {name} is LOSSY; the output no longer follows the target's own law.", err=True)
    if quiet or not params.greedy:
        return
    idle = {
        "--top-k": params.top_k != 0,
        "--top-p": params.top_p != 1,
        "--min-p": params.min_p != 0,
        "-n": params.n > 1,
    }
    if any(idle.values()):
        named = ", ".join(option for option, given in idle.items() if given)
        typer.echo(f"Note: at temperature 0 {named} changes nothing; give a --temperature above it.", err=True)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not of the form ID=BIAS, like 42=-1.5.", param_hint="--logit-bias"
        ) from None


def _drafter_option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(
            f"{text!r} is not of the form KEY=VALUE, like max_order=3.", param_hint="--drafter-option"
        )
    return name, option_value(value)
