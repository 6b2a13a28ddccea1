"""``headstart paper``: the founding paper's tables and traces, measured on models at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import Measured
from headstart.cli.option_groups import with_groups
from headstart.cli.options import SPECULATION
from headstart.common import enumerations
from headstart.drafting.speculation import VERIFY
from headstart.errors import ConfigError
from headstart_lab.commands.acceptance import Seed, Temperatures, parsed_temperatures
from headstart_lab.commands.bench import Out, PerGroup, Prompts

if TYPE_CHECKING:
    from headstart_lab.paper.tracing import Line

_LONGEST_GAMMA = 64
_TRACED_TOKENS = 32
"""Of the run behind the figures: more rounds would be too narrow to tell apart."""
_TRIES = 3
"""Runs of which the fastest is drawn."""


@with_groups
def paper(
    *,
    engine: Measured,
    drafts: Annotated[
        str,
        typer.Option(
            "--drafts",
            "-d",
            help="Drafters to pair the target with, separated by commas; those that have a draft length. Options "
            "follow a name, like draft-model:model=DIR. The first is traced for figures 1 and 5.",
            rich_help_panel=SPECULATION,
            metavar="A,B,...",
        ),
    ] = "early-exit,unigram,bigram,ngram",
    gammas: Annotated[
        str,
        typer.Option(help="Draft lengths γ to time, separated by commas.", rich_help_panel=SPECULATION, metavar="N,N"),
    ] = "3,7",
    verify: Annotated[enumerations.VerifyRule, typer.Option(help=VERIFY.help, rich_help_panel=SPECULATION)] = (
        enumerations.VerifyRule.REJECTION
    ),
    temperatures: Temperatures = "0,1",
    prompts: Prompts = None,
    per_group: PerGroup = 1,
    max_tokens: options.MaxTokens = 64,
    seed: Seed = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Time everything N times; speeds are medians.")] = 1,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat the founding paper's experiments (Leviathan et al. 2023, section 4) with a target and drafts of yours.

    Table 2: speed by task, draft, temperature and γ. Table 3: acceptance of every pair by Corollary 3.6, beside what
    was counted. Table 4: the speed that Theorem 3.8 expects of the measured c, beside the measured one. Tasks are the
    prompts' groups. Draws are checked by rejection, the paper's Algorithm 1; --verify block accepts more. --out also
    writes figures 1 and 5 of a traced run. Models with an encoder are measured likewise. Ctrl-C ends it with what has
    been measured until then.

    Examples:

        headstart paper

        headstart paper --drafts draft-model:model=./small,bigram --gammas 3,5,7 --per-group 4 --repeats 3 --out results

        headstart paper --model ./t5-large --drafts draft-model:model=./t5-small --prompts articles.jsonl
    """
    from headstart.cli.progress import Activity, import_engine

    import_engine(not quiet)
    from headstart.drafting.options import pieces
    from headstart.sampling.params import SamplingParams
    from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
    from headstart_lab.commands.exhibits import hand_out, measurement_record, write_text
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.paper.measuring import Pair, Sheet, measure
    from headstart_lab.paper.paper_report import exhibits, to_json
    from headstart_lab.paper.pictures import lines_svg, timeline_svg
    from headstart_lab.paper.tracing import TracedRun, lines_of, trace_run
    from headstart_lab.provenance import Origin, model_record
    from headstart_lab.workbench import PLAIN, Contender, Workbench, most_rows

    pairs = [Pair(name.strip()) for name in dict.fromkeys(pieces(drafts, ",")) if name.strip()]
    if not pairs:
        raise ConfigError(f"--drafts is {drafts!r}; give names of drafters with commas between them.")
    lengths = parsed_gammas(gammas)
    requests = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
        for temperature in dict.fromkeys(parsed_temperatures(temperatures))
    ]
    chosen = choose(read_prompts(prompts), per_group)
    turns = sum(len(prompt.turns) for prompt in chosen)
    where = Origin()
    sheets: list[Sheet] = []
    traced: list[TracedRun] = []
    lines: list[Line] = []
    interruption = Interruption(
        "turns", turns * repeats * len(requests), lambda: sum(sheet.runs.turns for sheet in sheets)
    )
    with Activity(shown=not quiet, aloud=True) as activity:
        activity.show(f"Loading {engine.model}")
        loaded = engine.load_target()
        texts = turns * (len(pairs) + repeats * (1 + len(pairs) * len(lengths)))
        activity.show("Measuring", len(requests) * texts)
        with interruption.kept():
            for params in requests:
                sheets.append(Sheet(params.temperature))
                measure(
                    *(loaded, pairs, lengths, chosen, params, repeats, sheets[-1], verify),
                    lambda tokens: activity.advance(1, tokens),
                )
            activity.show("Tracing")
            greedy = SamplingParams(temperature=0, max_tokens=min(max_tokens or 1, _TRACED_TOKENS))
            tokens = encode_turns(loaded, chosen[0].turns[:1], [])
            for length in sorted(lengths, reverse=True):
                contender = pairs[0].contender(0.0, length)
                bench = Workbench.of_model(loaded, draft_rows=most_rows([contender]))
                traced.append(trace_run(bench, contender, f"{pairs[0].draft}, γ = {length}", tokens, greedy, _TRIES))
            lines = lines_of(traced[0], loaded.tokenizer)
            bench = Workbench.of_model(loaded)
            traced.append(trace_run(bench, Contender.parse(PLAIN), "plain decoding", tokens, greedy, _TRIES))

    rows = [row for sheet in sheets for row in sheet.rows()]
    record = measurement_record(
        *(where, model_record(loaded), prompts, chosen, interruption),
        drafts=[pair.draft for pair in pairs],
        gammas=lengths,
        verify=verify.value,
        max_tokens=max_tokens,
        seed=seed,
        repeats=repeats,
        batch_size=1,
    )
    name = Path(str(engine.model)).name
    title = f"The founding paper's tables, measured on {name}"
    shown = exhibits(rows, traced, lines, name)
    result = to_json(rows, traced, lines, record)
    hand_out(result, shown, record, as_json, out, "paper", title, interruption.sentence)
    if out is not None and traced:
        write_text(out / "figure5.svg", timeline_svg(traced) + "\n")
        write_text(out / "figure1.svg", lines_svg(lines) + "\n")
    if not as_json and lines:
        _print_lines(lines)
    interruption.end()


def parsed_gammas(text: str) -> list[int]:
    """What ``--gammas`` names, each once.

    Raises:
        ConfigError: it is no list of draft lengths.
    """
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if not all(1 <= value <= _LONGEST_GAMMA for value in values):
        raise ConfigError(f"--gammas is {text!r}; give whole numbers from 1 to {_LONGEST_GAMMA} with commas between.")
    return list(dict.fromkeys(values))


def _print_lines(lines: list[Line]) -> None:
    """Figure 1: in colour where the terminal has it, else between marks."""
    from rich.console import Console
    from rich.text import Text

    from headstart.cli.showing import MARKS, REJECTED, REJECTED_MARKS, STYLES
    from headstart.engine.outputs import TokenOrigin

    console = Console(highlight=False, markup=False, emoji=False)
    coloured = console.color_system is not None and not console.no_color
    console.print("Figure 1: what became of the guesses, a line for each pass of the target", style="bold")
    kinds = (
        ("accepted", STYLES[TokenOrigin.ACCEPTED], MARKS[TokenOrigin.ACCEPTED]),
        ("rejected", REJECTED, REJECTED_MARKS),
        ("answer", STYLES[TokenOrigin.CORRECTED], MARKS[TokenOrigin.CORRECTED]),
    )
    for line in lines:
        shown = Text(line.before.replace("\n", "↵"))
        for name, style, marks in kinds:
            text = getattr(line, name).replace("\n", "↵")
            if text:
                shown.append(text if coloured else text.join(marks), style)
        console.print(shown, soft_wrap=True)
