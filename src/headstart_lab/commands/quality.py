"""``headstart quality``: what does a precision cost?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import READING
from headstart.cli.option_groups import Only, with_groups
from headstart.common import enumerations
from headstart.common.enumerations import CacheType
from headstart.entrypoints.engine_options import MODEL, EngineOptions
from headstart.errors import ConfigError
from headstart_lab.commands.bench import Out, PerGroup, Prompts

if TYPE_CHECKING:
    from headstart.cli.progress import Activity
    from headstart.common.enumerations import Precision
    from headstart.loading.model import Model
    from headstart_lab.quality.run import Quality
    from headstart_lab.workbench import Workbench

ALL = "all"


@with_groups
def quality(
    *,
    engine: Annotated[EngineOptions, Only("model", "cache_type", *(name for name in READING if name != "precision"))],
    precisions: Annotated[
        str,
        typer.Option(
            help="Precisions to judge, separated by commas, of fp32, bf16, int8, int8-fast, int4, int4-fast, blocks. "
            "Left out: all that run here.",
            rich_help_panel=MODEL,
            metavar="A,B,...",
        ),
    ] = ALL,
    reference: Annotated[
        enumerations.Precision, typer.Option(help="The precision to compare with.", rich_help_panel=MODEL)
    ] = enumerations.Precision.BF16,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text to compare them on: a text file, or JSONL with a text (or a prompt) per line. Left out: nine "
            "short texts of the package.",
            metavar="FILE",
        ),
    ] = None,
    context: Annotated[int, typer.Option(min=2, help="Tokens read in one piece.")] = 512,
    prompts: Prompts = None,
    per_group: PerGroup = 2,
    max_tokens: options.MaxTokens = 64,
    out: Out = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure what a precision costs in quality: the model in int8, say, against itself in bf16.

    Both read the same text: perplexity, how far their laws are apart at each token (KL), how often they find the same
    token best. Then both answer prompts greedily: how far do they say the same? One line for each precision sums it
    up. A precision is a target of its own: speculation keeps its law to the last bit, whatever this command says. So is
    a --cache-type, which the reference does without. Ctrl-C ends it with the precisions that have been judged until
    then.

    Examples:

        headstart quality

        headstart quality --precisions int8-fast --text my-notes.txt

        headstart quality --model ./my-model --reference fp32 --precisions bf16,int8 --prompts my.jsonl --out results
    """
    from headstart.cli.progress import Activity, import_engine

    import_engine(not quiet)
    from headstart_lab.bench.prompts import choose, encode_turns, read_prompts
    from headstart_lab.commands.exhibits import hand_out, measurement_record
    from headstart_lab.commands.interruption import Interruption
    from headstart_lab.provenance import Origin, model_record
    from headstart_lab.quality.passages import read_passages, windows
    from headstart_lab.quality.quality_report import exhibits, to_json
    from headstart_lab.quality.run import GreedyPair, Quality, answer_greedily, read_texts

    against, cache_type = _named("--reference", reference.value), CacheType(engine.cache_type)
    wanted = _wanted(precisions, against)
    passages, chosen = read_passages(text), choose(read_prompts(prompts), per_group)
    where = Origin()
    results: list[Quality] = []
    skipped: dict[str, str] = {}
    with Activity(shown=not quiet, aloud=True) as activity:

        def answers(precision: Precision, bench: Workbench) -> list[list[int]]:
            activity.show(f"Answering in {precision.value}", len(asked))
            return list(answer_greedily(bench, [*asked.values()], max_tokens, lambda n: activity.advance(1, n)))

        def judge(precision: Precision) -> Quality:
            other, bench = _loaded(engine, precision, activity, cache_type)
            activity.show(f"Reading in {precision.value}", len(pieces))
            figures = read_texts(base_bench, bench, pieces, lambda n: activity.advance(1, n))
            pairs = map(GreedyPair.of, asked, base_answers, answers(precision, bench))
            kept = "" if cache_type is CacheType.AUTO else f" with a cache of {cache_type.value}"
            names, backend = (precision.value + kept, against.value), other.backend
            return Quality(*names, backend.name, backend.nbytes, figures, tuple(pairs))

        base, base_bench = _loaded(engine, against, activity)
        tokens = [base.tokenizer.encode(passage) for passage in passages]
        pieces = windows(tokens, min(context, base_bench.limits.max_context))
        if not pieces:
            raise ConfigError(f"--text is {text}, which is too short; give some hundred words.")
        encoded = {prompt.id: encode_turns(base, prompt.turns[:1], []) for prompt in chosen}
        asked = {name: ids for name, ids in encoded.items() if base_bench.fits(ids, max_tokens)}
        interruption = Interruption("precisions", len(wanted), lambda: len(results))
        with interruption.kept():
            base_answers = answers(against, base_bench)
            for precision in wanted:
                try:
                    results.append(judge(precision))
                except ConfigError as error:
                    if precisions != ALL:
                        raise
                    skipped[precision.value] = str(error)

    record = measurement_record(
        where,
        model_record(base),
        prompts,
        [prompt for prompt in chosen if prompt.id in asked],
        interruption,
        left_out=len(encoded) - len(asked),
        reference=against.value,
        text="package" if text is None else text.name,
        texts=len(passages),
        context=context,
        max_tokens=max_tokens,
    )
    verdicts = [each.verdict for each in results]
    lead = " ".join([*verdicts, interruption.sentence]).strip()
    title = f"Quality of {Path(str(engine.model)).name} by precision"
    hand_out(
        to_json(results, record, skipped), exhibits(results, skipped), record, as_json, out, "quality", title, lead
    )
    if not as_json:
        for verdict in verdicts:
            typer.echo(verdict)
    interruption.end()


def _loaded(
    engine: EngineOptions, precision: Precision, activity: Activity, cache_type: CacheType = CacheType.AUTO
) -> tuple[Model, Workbench]:
    """The model in one precision, and what it is measured on; says what memory they take."""
    from headstart.common.memory import MemoryUse
    from headstart_lab.workbench import Workbench

    activity.show(f"Loading {engine.model} in {precision.value}")
    loaded = engine.changed(precision=precision).load_target()
    bench = Workbench.of_model(loaded, cache_type=cache_type)
    use = MemoryUse(loaded.backend.nbytes, bench.runner.cache.storage.nbytes, drafters=0)
    activity.say(f"Memory in {precision.value}: {use}.")
    return loaded, bench


def _wanted(precisions: str, against: Precision) -> list[Precision]:
    from headstart.common.enumerations import Precision

    if precisions == ALL:
        return [each for each in Precision if each not in (Precision.AUTO, against)]
    names = [name.strip() for name in precisions.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--precisions is {precisions!r}; give names with commas between them, or {ALL}.")
    return [_named("--precisions", name) for name in dict.fromkeys(names)]


def _named(option: str, name: str) -> enumerations.Precision:

    precision: enumerations.Precision = enumerations.named(enumerations.Precision, "precision", name)
    if precision is enumerations.Precision.AUTO:
        raise ConfigError(f"{option} is auto, which stands for different precisions; name one, like bf16.")
    return precision
