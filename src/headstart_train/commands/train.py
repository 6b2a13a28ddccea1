"""``headstart train``: teach a drafter what its target says."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.option_groups import Only, with_groups
from headstart.cli.options import OUTPUT
from headstart.entrypoints.engine_options import EngineOptions
from headstart_train.commands import folders
from headstart_train.commands.train_options import HeadChoice, HeadOptions, LearningOptions, TextOptions
from headstart_train.commands.writing_on_ray import RayWriting

if TYPE_CHECKING:
    from headstart.cli.progress import Activity
    from headstart_train.progressing import Progressing
    from headstart_train.recipe import TrainedHead
    from headstart_train.trainer import StepReport

USEFUL = 0.3
"""Part of the first guesses that must be right if a head is to be worth its time."""


@with_groups
def train(
    *,
    head: Annotated[HeadChoice, typer.Argument(help="What to train.", metavar="HEAD")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Directory to write the head to.", metavar="DIR", callback=folders.made_folder
        ),
    ],
    engine: Annotated[EngineOptions, Only("model", "precision")],
    text: TextOptions,
    making: HeadOptions,
    learning: LearningOptions,
    writing: RayWriting,
    as_json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Train a draft head or a draft model: the target writes the text, the head learns to foresee it.

    The directory ends with the best head (by acceptance on held-out text), a report, and a checkpoint from which the
    same command goes on after an interruption. With torchrun, several processes train together; with --ray, many
    machines write the text.

    Examples:

        headstart train eagle3 --out heads/eagle3 --minutes 60

        headstart train medusa --out heads/medusa --corpus heads/eagle3/corpus

        headstart train eagle3 --out heads/code --prompts mbpp.jsonl --temperature 0

        headstart train eagle3 --out heads/mine --init heads/eagle3 --prompts my_documents.jsonl --lr 5e-4

        headstart train eagle3 --out heads/more --init heads/mine --prompts new.jsonl --earlier-corpus heads/mine/corpus

        headstart train mtp --out heads/mtp --minutes 60

        headstart train draft-model --layers 0,1,29 --out small

        headstart train eagle3 --out heads/large --tokens 20000000 --ray --ray-address auto --cpus-per-writer 8

        headstart generate --chat "Name ten rivers." --drafter eagle3 --draft-model heads/eagle3 --compare
    """
    from headstart.cli.progress import Activity

    writing.check()
    aloud = os.environ.get("RANK", "0") == "0"
    with _resumable(), Activity(shown=not quiet, aloud=aloud) as activity, writing.connected() as writers:
        activity.show("Preparing")
        from headstart_train.recipe import train_head

        result = train_head(
            head.value,
            str(engine.model),
            out,
            text=text.settings(),
            head=making.settings(),
            settings=learning.settings(head.value),
            length=learning.length,
            minutes=learning.minutes,
            fit_batch=learning.batch is None,
            cache_gb=learning.cache_gb,
            device=learning.device,
            precision=str(engine.precision),
            writers=writers,
            on_progress=_shown_by(activity),
        )
    if not result.leads:
        return
    if as_json:
        from headstart.cli.json_output import print_json

        print_json(_told(result, head))
    else:
        typer.echo(_outcome(result, head))


def _told(result: TrainedHead, head: HeadChoice) -> dict[str, Any]:
    """What became of a training, by names; None where it is not known."""
    progress = result.progress
    first = progress.first_guesses
    return {
        "head": head.value,
        "directory": str(result.directory),
        "corpus": None if result.corpus is None else str(result.corpus),
        "steps": progress.step,
        "minutes": result.minutes,
        "coverage": result.coverage,
        "accepted_length": None if first is None else progress.best,
        "first_guesses_accepted": first,
        "useful": None if first is None else first >= USEFUL,
        "enough_minutes": result.enough_minutes,
    }


def _outcome(result: TrainedHead, head: HeadChoice) -> str:
    """What became of a training: how good the head is, and what to do if it is no good yet."""
    progress = result.progress
    done = f"{result.directory}: {progress.step} steps, {result.minutes:.1f} min in all, "
    covered = f"{result.coverage:.1%} of what the target says covered."
    first = progress.first_guesses
    if first is None:
        return f"{done}too little text to hold any out and measure acceptance on, {covered}"
    line = (
        f"{done}accepted length {progress.best:.2f} on held-out text ({first:.0%} of first guesses accepted), {covered}"
    )
    if first >= USEFUL:
        return line
    longer = "on more text"
    if result.enough_minutes is not None:
        minutes = max(10 * math.ceil(result.enough_minutes / 10), 10)
        longer = (
            f"for about {minutes} minutes on this machine as busy as it is now: headstart train {head.value} --minutes "
            f"{minutes} --corpus {result.corpus} --out ANOTHER_FOLDER, with your other options"
        )
    useless = f"This head accepts {first:.0%} of its first guesses, too few to gain anything"
    return f"{line}\n{useless}. Train longer, {longer}."


@contextmanager
def _resumable() -> Iterator[None]:
    """Say what becomes of a training that Ctrl-C ends."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Interrupted; the same command goes on from the last checkpoint, with the text kept.", err=True)
        raise


def _shown_by(activity: Activity) -> Progressing:
    from headstart_train.progressing import Progressing

    def trained(report: StepReport) -> None:
        progress = report.progress
        known = f", accepted length {progress.held_out[-1][1]:.2f}" if progress.held_out else ""
        activity.advance_saying(1, f"step {progress.step} of {progress.total_steps}, loss {report.loss:.3f}{known}")

    return Progressing(
        begin=activity.show,
        # Its steps are tokens.
        wrote=lambda documents, tokens: activity.advance(tokens, tokens),
        trained=trained,
        says=activity.announce,
        left=activity.end_within,
    )
