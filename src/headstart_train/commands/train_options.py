"""The options of ``headstart train``, in three groups (``option_groups``), and what the trainer is told of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from headstart.common import enumerations
from headstart.drafting.registry import trained_kinds
from headstart_train.choices import LossName, OptimiserName
from headstart_train.commands import folders
from headstart_train.commands.layers import layer_choice

if TYPE_CHECKING:
    from headstart_train.making import HeadSettings
    from headstart_train.text.text import TextSettings
    from headstart_train.trainer import TrainSettings

TEXT, HEAD, TRAINING = "Text", "Head", "Training"


class HeadChoice(StrEnum):
    """Everything that the registry of methods knows how to train."""

    vars().update({name.upper().replace("-", "_"): name for name in trained_kinds()})


class LossChoice(StrEnum):
    """``choices.LossName``."""

    vars().update({name.upper(): name for name in get_args(LossName)})


CROSS_ENTROPY = LossChoice("ce")


class OptimiserChoice(StrEnum):
    """``choices.OptimiserName``."""

    vars().update({name.upper(): name for name in get_args(OptimiserName)})


class ArithmeticChoice(StrEnum):
    """What products of a training are computed in."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True)
class TextOptions:
    """What the head learns from."""

    tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of training text that the target writes.", rich_help_panel=TEXT)
    ] = 2_000_000
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Prompts that the target answers, besides questions that it makes up: JSONL with messages, turns, "
            "prompt or question in each line. May be repeated.",
            metavar="FILE.jsonl",
            rich_help_panel=TEXT,
        ),
    ] = None
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            min=0.0,
            help="Temperature of the target's answers; if repeated, answers take turns. Left out: 0 and 0.8.",
            rich_help_panel=TEXT,
        ),
    ] = None
    answer_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.", rich_help_panel=TEXT)] = 192
    batch_size: Annotated[
        int, typer.Option(min=1, help="How many answers are written together.", rich_help_panel=TEXT)
    ] = 64
    text_precision: Annotated[
        enumerations.Precision | None,
        typer.Option(
            help="Number format in which the target writes the text; int8-fast takes about half the time. Left out: as "
            "--precision.",
            rich_help_panel=TEXT,
        ),
    ] = None
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Where the text is kept, so that several heads can share it. Left out: `corpus` in --out.",
            metavar="DIR",
            callback=folders.made_folder,
            rich_help_panel=TEXT,
        ),
    ] = None
    earlier_corpus: Annotated[
        list[Path] | None,
        typer.Option(
            help="Also learn from the text of an earlier training for the same target; may be repeated.",
            metavar="DIR",
            rich_help_panel=TEXT,
        ),
    ] = None
    learn_prompts: Annotated[
        bool,
        typer.Option(
            "--learn-prompts",
            help="Also learn the target's predictions inside the prompts: two or three times as many examples from the "
            "same text.",
            rich_help_panel=TEXT,
        ),
    ] = False

    def settings(self) -> TextSettings:
        from headstart_train.text.text import TextSettings

        return TextSettings(
            self.tokens,
            tuple(self.prompts or ()),
            tuple(self.temperature or (0.0, 0.8)),
            self.answer_tokens,
            self.batch_size,
            self.text_precision and self.text_precision.value,
            self.corpus,
            tuple(self.earlier_corpus or ()),
            self.learn_prompts,
        )


@dataclass(frozen=True)
class HeadOptions:
    """What kind of head learns."""

    draft_vocab: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of tokens that the head can guess; 0: all. Left out: the most frequent ones that cover 97 % "
            "of the text (all, for draft-model and pass).",
            rich_help_panel=HEAD,
        ),
    ] = None
    slots: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many tokens p-eagle, dflash, medusa, blockwise and pass guess ahead. Left out: 4 (p-eagle 8, "
            "dflash 9, dspark 7, jetspec 16), or as the head of --init.",
            rich_help_panel=HEAD,
        ),
    ] = None
    residual_blocks: Annotated[
        int | None,
        typer.Option(min=1, help="Residual blocks in each of medusa's heads. Left out: 4.", rich_help_panel=HEAD),
    ] = None
    read_token: Annotated[
        bool | None,
        typer.Option(
            "--read-token/--state-only",
            help="Whether medusa's heads also read the token that the target has just said. They guess better; exports "
            "to Medusa's format leave it out.",
            show_default="read",
            rich_help_panel=HEAD,
        ),
    ] = None
    unroll: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Steps that an EAGLE head or a multi-token module is unrolled on its own states in training; "
            "of p-eagle the most that its masks stand behind, so that it may be stepped, too. Left out: 4 (eagle3, "
            "mtp), 1 (p-eagle, eagle).",
            rich_help_panel=HEAD,
        ),
    ] = None
    causal: Annotated[
        bool | None,
        typer.Option(
            "--causal/--both-ways",
            help="Whether the rows of a dflash block see only those before them, or each other.",
            show_default="both ways (jetspec: causal), or as the head of --init",
            rich_help_panel=HEAD,
        ),
    ] = None
    markov_rank: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Rank of what the token before a guess adds to it in dflash; 0: a guess does not depend on those "
            "before it. Left out: 0 (dspark 64), or as the head of --init.",
            rich_help_panel=HEAD,
        ),
    ] = None
    confidence: Annotated[
        bool | None,
        typer.Option(
            "--confidence/--no-confidence",
            help="Whether a dflash head also learns how likely its guesses are accepted, which ends drafts early.",
            show_default="no (dspark: yes), or as the head of --init",
            rich_help_panel=HEAD,
        ),
    ] = None
    root_speaks: Annotated[
        bool | None,
        typer.Option(
            "--root-speaks/--root-silent",
            help="Whether the last token's row of a dflash block guesses the next token, or its first mask does.",
            show_default="silent (dspark: speaks), or as the head of --init",
            rich_help_panel=HEAD,
        ),
    ] = None
    spacing: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of text from one dflash block that is learnt to the next. Closer ones learn more of the same "
            "text in a longer step. Left out: as many as a block has rows.",
            metavar="N",
            rich_help_panel=HEAD,
        ),
    ] = None
    layers: Annotated[
        str | None,
        typer.Option(
            help="The target's layers that draft-model starts from: how many, evenly spread, or which, like 0,1,29. "
            "Left out: the first two and the last. For eagle3, p-eagle, eagle and dflash: how many layers the head "
            "has; left out: 1 (dflash 3), or as the head of --init.",
            metavar="N|LIST",
            rich_help_panel=HEAD,
        ),
    ] = None
    window: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Positions that an eagle3 or p-eagle head sees; 0: all. Left out: all, or as the head of --init.",
            metavar="N",
            rich_help_panel=HEAD,
        ),
    ] = None
    init: Annotated[
        Path | None,
        typer.Option(
            help="Start from an existing head of the same kind (eagle3, p-eagle, dflash, eagle, medusa, blockwise), "
            "yours or another project's; its draft vocabulary may differ, and it may have fewer layers. p-eagle may "
            "start from an eagle3 head.",
            metavar="DIR",
            rich_help_panel=HEAD,
        ),
    ] = None
    dropout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=0.9,
            help="Share of an EAGLE head's inputs that is zeroed in training, against overfitting.",
            rich_help_panel=HEAD,
        ),
    ] = None
    loss: Annotated[
        LossChoice,
        typer.Option(
            help="ce: cross-entropy to the target's distribution. tv: the rate of rejections; lk: from the one to the "
            "other (both for drafts that are sampled). dpace: ce, with the guesses of a dflash block weighed by "
            "how likely the block gets there.",
            rich_help_panel=HEAD,
        ),
    ] = CROSS_ENTROPY

    def settings(self) -> HeadSettings:
        """
        Raises:
            BadParameter: ``layers`` is no list of numbers.
        """
        from headstart_train.making import HeadSettings

        return HeadSettings(
            self.draft_vocab,
            self.slots,
            self.unroll,
            loss=cast(LossName, self.loss.value),
            layers=None if self.layers is None else layer_choice(self.layers),
            window=self.window,
            init=self.init,
            residual_blocks=self.residual_blocks,
            reads_token=self.read_token,
            dropout=self.dropout,
            causal=self.causal,
            markov_rank=self.markov_rank,
            confidence=self.confidence,
            root_speaks=self.root_speaks,
            spacing=self.spacing,
        )


@dataclass(frozen=True)
class LearningOptions:
    """How it learns."""

    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Minutes that everything may take, the writing of the text included, which is made as long as they "
            "allow. Left out: as long as it takes; how long is said at the beginning.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    epochs: Annotated[float, typer.Option(help="Passes over the text.", rich_help_panel=TRAINING)] = 4.0
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of optimiser steps, instead of --epochs.", rich_help_panel=TRAINING),
    ] = None
    optimiser: Annotated[
        OptimiserChoice | None,
        typer.Option(
            help="muon: Muon for the inner matrices, AdamW for the rest; halves the steps of eagle3 and medusa; their "
            "default, p-eagle's and dflash's. adamw: AdamW alone, the default of the others.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate. Left out: 0.001 (blockwise 0.002, pass 0.01).", rich_help_panel=TRAINING),
    ] = None
    final_lr: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Share of the learning rate that is left at the end.", rich_help_panel=TRAINING
        ),
    ] = 0.05
    average: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Average the weights over about this last share of the steps; 0: keep the last weights. Helps small "
            "batches with a high --final-lr.",
            rich_help_panel=TRAINING,
        ),
    ] = 0.0
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Packs of text per step. Left out: 16, or fewer where there is little text.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    micro_batch: Annotated[
        int,
        typer.Option(min=1, help="Packs computed at once; fewer take less memory.", rich_help_panel=TRAINING),
    ] = 4
    length: Annotated[int, typer.Option(min=8, help="Tokens per pack.", rich_help_panel=TRAINING)] = 512
    evaluate_every: Annotated[
        int, typer.Option(min=1, help="Steps between measurements of acceptance.", rich_help_panel=TRAINING)
    ] = 100
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.", rich_help_panel=TRAINING)] = 50
    arithmetic: Annotated[
        ArithmeticChoice, typer.Option(help="Number format of the matrix products.", rich_help_panel=TRAINING)
    ] = ArithmeticChoice.FP32
    cache_gb: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Gigabytes of memory, and of files beside the text, for the target's states; the rest is recomputed. "
            "At most half of the memory that is free.",
            rich_help_panel=TRAINING,
        ),
    ] = 4.0
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. Left out: a GPU if there is one.", rich_help_panel=TRAINING)
    ] = None
    seed: Annotated[
        int, typer.Option(help="Seed of the text, the initial weights and the order.", rich_help_panel=TRAINING)
    ] = 0

    def settings(self, head: str) -> TrainSettings:
        """With the defaults of a kind of head."""
        from headstart_train.trainer import TrainSettings

        kind = trained_kinds()[head]
        return TrainSettings(
            epochs=self.epochs,
            steps=self.steps,
            batch=self.batch or 16,
            micro_batch=self.micro_batch,
            optimiser=cast(OptimiserName, self.optimiser.value) if self.optimiser else kind.optimiser,
            lr=kind.learning_rate if self.lr is None else self.lr,
            final_lr=self.final_lr,
            average=self.average,
            evaluate_every=self.evaluate_every,
            save_every=self.save_every,
            seed=self.seed,
            precision=self.arithmetic.value,
        )
