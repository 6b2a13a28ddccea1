"""``headstart train``: teach a drafter what its target says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli import options
from headstart.cli.options import OUTPUT, PrecisionChoice
from headstart.models.aliases import DEFAULT_MODEL

if TYPE_CHECKING:
    from headstart.cli.progress import Activity
    from headstart.training.progressing import Progressing
    from headstart.training.trainer import StepReport

TEXT, HEAD, TRAINING = "Text", "Head", "Training"


class HeadChoice(StrEnum):
    """Names of ``training.recipe.HEAD_NAMES``, which is costly to import."""

    EAGLE3 = "eagle3"
    EAGLE = "eagle"
    MEDUSA = "medusa"
    BLOCKWISE = "blockwise"
    DRAFT_MODEL = "draft-model"
    PASS = "pass"


_RATES = {HeadChoice.BLOCKWISE: 2e-3, HeadChoice.PASS: 1e-2}
"""Learning rates that differ from 1e-3."""


class LossChoice(StrEnum):
    """Names of ``training.losses.ROW_LOSSES``, likewise."""

    CE = "ce"
    TV = "tv"
    LK = "lk"


class OptimiserChoice(StrEnum):
    """Names of ``training.optimiser.OptimiserName``, likewise."""

    MUON = "muon"
    ADAMW = "adamw"


_OPTIMISERS = {HeadChoice.EAGLE3: OptimiserChoice.MUON, HeadChoice.MEDUSA: OptimiserChoice.MUON}
"""Where it is not adamw."""


class ArithmeticChoice(StrEnum):
    """What products of a training are computed in."""

    FP32 = "fp32"
    BF16 = "bf16"


def train(
    head: Annotated[HeadChoice, typer.Argument(help="What to train.", metavar="HEAD")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Directory of the head.", metavar="DIR", callback=options.made_folder),
    ],
    model: options.Model = DEFAULT_MODEL,
    precision: options.Precision = PrecisionChoice.AUTO,
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that the target writes to be learnt from.", rich_help_panel=TEXT)
    ] = 2_000_000,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL file of questions (messages, turns, prompt or question) that the target answers besides those "
            "that it asks itself, and a model without a chat template continues; may be repeated.",
            metavar="FILE.jsonl",
            rich_help_panel=TEXT,
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0,
            help="Of the target's answers; repeated, they take turns. Left out: 0 and 0.8.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.", rich_help_panel=TEXT)] = 192,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Answers that are written together.", rich_help_panel=TEXT)
    ] = 64,
    text_precision: Annotated[
        PrecisionChoice | None,
        typer.Option(
            help="What the text is written in; left out: as --precision. int8-fast says nearly the same in half the "
            "time.",
            rich_help_panel=TEXT,
        ),
    ] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the text, to share it among heads; DIR/corpus if left out.",
            metavar="DIR",
            callback=options.made_folder,
            rich_help_panel=TEXT,
        ),
    ] = None,
    earlier_corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="Directory of text that an earlier training of this target has written, to be learnt from as well; "
            "may be repeated.",
            metavar="DIR",
            rich_help_panel=TEXT,
        ),
    ] = None,
    learn_prompts: Annotated[
        bool,
        typer.Option(
            "--learn-prompts",
            help="Learn what the target would have said in the prompts' place, too: two or three times as much to "
            "learn from the same text.",
            rich_help_panel=TEXT,
        ),
    ] = False,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tokens that the head can say; 0: all; left out: enough for 97 % of what the target says, or all "
            "(draft-model, pass).",
            rich_help_panel=HEAD,
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option(min=1, help="Future tokens of medusa, blockwise and pass.", rich_help_panel=HEAD)
    ] = 4,
    residual_blocks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Blocks of each of medusa's slots, one behind the other; left out: 4.", rich_help_panel=HEAD
        ),
    ] = None,
    unroll: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps that an EAGLE head is trained on its own states; left out: 4 (eagle3) or 1 (eagle).",
            rich_help_panel=HEAD,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="The target's layers that draft-model begins as: how many, evenly spread, or which, like 0,1,29; left "
            "out: the first two and the last.",
            metavar="N|LIST",
            rich_help_panel=HEAD,
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a head to begin from, yours or another's, of the same kind (eagle3, eagle, medusa, "
            "blockwise); its draft vocabulary may differ.",
            metavar="DIR",
            rich_help_panel=HEAD,
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.9,
            help="Share of what an EAGLE head reads that is zeroed while it learns, lest it learn a text by heart.",
            rich_help_panel=HEAD,
        ),
    ] = None,
    loss: Annotated[
        LossChoice,
        typer.Option(
            help="ce: cross-entropy to the target's law; tv: rate of refusals; lk: first the one, then the other "
            "(both for sampled drafts).",
            rich_help_panel=HEAD,
        ),
    ] = LossChoice.CE,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.0, help="Budget of the training, after the text is written.", rich_help_panel=TRAINING),
    ] = None,
    epochs: Annotated[float, typer.Option(help="Times that the text is read.", rich_help_panel=TRAINING)] = 4.0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Optimiser steps instead of epochs.", rich_help_panel=TRAINING)
    ] = None,
    optimiser: Annotated[
        OptimiserChoice | None,
        typer.Option(
            help="adamw, or muon for the matrices between hidden states and adamw for the rest; left out: muon for "
            "eagle3 and medusa, which learn in half the steps with it, adamw for the others.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate; 0.001, 0.002 for blockwise, 0.01 for pass.", rich_help_panel=TRAINING),
    ] = None,
    final_lr: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of the learning rate that is left in the end.", rich_help_panel=TRAINING
        ),
    ] = 0.05,
    average: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Make the head the mean of its weights over about the last such share of the steps; 0: the last ones. "
            "Serves small batches, with a --final-lr that stays high.",
            rich_help_panel=TRAINING,
        ),
    ] = 0.0,
    batch: Annotated[int, typer.Option(min=1, help="Packs of text in a step.", rich_help_panel=TRAINING)] = 16,
    micro_batch: Annotated[
        int,
        typer.Option(min=1, help="Packs that are computed together: fewer need less memory.", rich_help_panel=TRAINING),
    ] = 4,
    length: Annotated[int, typer.Option(min=8, help="Tokens of a pack.", rich_help_panel=TRAINING)] = 512,
    evaluate_every: Annotated[
        int, typer.Option(min=1, help="Steps between measurements of acceptance.", rich_help_panel=TRAINING)
    ] = 100,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.", rich_help_panel=TRAINING)] = 50,
    arithmetic: Annotated[
        ArithmeticChoice, typer.Option(help="What products are computed in.", rich_help_panel=TRAINING)
    ] = ArithmeticChoice.FP32,
    cache_gb: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Memory, and files beside the text, for the target's states; beyond it they are recomputed.",
            rich_help_panel=TRAINING,
        ),
    ] = 4.0,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda; left out: a GPU where there is one.", rich_help_panel=TRAINING)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of text, initial weights and order.", rich_help_panel=TRAINING)] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Train a draft head or a draft model: the target writes the text, the head learns to foresee it.

    The directory ends with the best head (by acceptance on held-out text), a report, and a checkpoint from which the
    same command goes on after an interruption. With torchrun, several processes train together.

    Examples:

        headstart train eagle3 --out heads/eagle3 --minutes 60

        headstart train medusa --out heads/medusa --corpus heads/eagle3/corpus

        headstart train eagle3 --out heads/code --prompts mbpp.jsonl --temperature 0

        headstart train eagle3 --out heads/mine --init heads/eagle3 --prompts my_documents.jsonl --lr 5e-4

        headstart train eagle3 --out heads/more --init heads/mine --prompts new.jsonl --earlier-corpus heads/mine/corpus

        headstart train draft-model --layers 0,1,29 --out small

        headstart generate --chat "Name ten rivers." --drafter eagle3 --draft-model heads/eagle3 --compare
    """
    from headstart.cli.progress import Activity

    with _resumable(), Activity(shown=not quiet) as activity:
        activity.show("Preparing")
        from headstart.training.recipe import HeadSettings, train_head
        from headstart.training.text import TextSettings
        from headstart.training.trainer import TrainSettings

        result = train_head(
            head.value,
            model,
            out,
            text=TextSettings(
                tokens,
                tuple(prompts or ()),
                tuple(temperature or (0.0, 0.8)),
                answer_tokens,
                batch_size,
                text_precision and text_precision.value,
                corpus,
                tuple(earlier_corpus or ()),
                learn_prompts,
            ),
            head=HeadSettings(
                draft_vocab,
                slots,
                unroll,
                loss=loss.value,
                layers=None if layers is None else options.layer_choice(layers),
                init=init,
                residual_blocks=residual_blocks,
                dropout=dropout,
            ),
            settings=TrainSettings(
                epochs=epochs,
                steps=steps,
                batch=batch,
                micro_batch=micro_batch,
                optimiser=(optimiser or _OPTIMISERS.get(head, OptimiserChoice.ADAMW)).value,
                lr=_RATES.get(head, 1e-3) if lr is None else lr,
                final_lr=final_lr,
                average=average,
                evaluate_every=evaluate_every,
                save_every=save_every,
                seed=seed,
                precision=arithmetic.value,
            ),
            length=length,
            minutes=minutes,
            cache_gb=cache_gb,
            device=device,
            precision=precision.value,
            on_progress=_shown_by(activity, aloud=not quiet and not sys.stderr.isatty()),
        )
    progress = result.progress
    if not result.leads:
        return
    judged = (
        f"accepted length {progress.best:.2f} on held-out text"
        if progress.held_out
        else "too little text to hold any out and measure acceptance on"
    )
    typer.echo(
        f"{out}: {progress.step} steps in {progress.seconds / 60:.1f} min, {judged}, "
        f"{result.coverage:.1%} of what the target says covered."
    )


@contextmanager
def _resumable() -> Iterator[None]:
    """Say what becomes of a training that Ctrl-C ends."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Interrupted; the same command goes on from the last checkpoint, with the text kept.", err=True)
        raise


def _shown_by(activity: Activity, aloud: bool) -> Progressing:
    """``aloud``: where there is no terminal, a line for each phase, batch of answers and measurement of acceptance."""
    from headstart.training.progressing import Progressing

    aloud = aloud and os.environ.get("RANK", "0") == "0"
    written = 0

    def begin(phase: str, total: int | None) -> None:
        activity.show(phase, total)
        if aloud:
            typer.echo(phase, err=True)

    def wrote(documents: int, tokens: int) -> None:
        nonlocal written
        written += tokens
        activity.advance(documents, tokens)
        if aloud:
            typer.echo(f"{written} tokens", err=True)

    def trained(report: StepReport) -> None:
        progress = report.progress
        known = f", accepted length {progress.held_out[-1][1]:.2f}" if progress.held_out else ""
        standing = f"step {progress.step} of {progress.total_steps}, loss {report.loss:.3f}{known}"
        activity.advance_saying(1, standing)
        if aloud and progress.held_out and progress.held_out[-1][0] == progress.step:
            typer.echo(standing, err=True)

    return Progressing(begin=begin, wrote=wrote, trained=trained)
