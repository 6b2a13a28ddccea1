"""Multi-token modules that came with the target (DeepSeek-V3, arXiv:2412.19437, section 2.2).

A chain of modules, each of which reads a token and what the one before it made of the token before: the first says the
next token, the second the one after. Their tree grows where they are sure, as EAGLE-2's; beyond the last module that
one goes on from its own states, which is all that a checkpoint with one module can do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.draft_vocabulary import DraftVocabulary
from headstart.drafting.head_trees.growing import CalledGrowth
from headstart.drafting.head_trees.head_drafter import HeadDrafter, TreeGrowth
from headstart.drafting.head_trees.head_source import SpeakingOptions
from headstart.drafting.head_trees.read_along import Reader
from headstart.drafting.head_trees.stepping import SteppedGrowth
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES
from headstart.drafting.methods.mtp import PASSES
from headstart.drafting.options import require
from headstart.models.checkpoint import open_modules
from headstart.passes.batch import FINAL_TAP, stream_taps


@dataclass(frozen=True)
class MtpOptions(SpeakingOptions):
    model: str | None = None
    """A checkpoint whose modules are used, of a model of the target's shape: for a file of the target that lacks them,
    or modules that were trained on; None: those that came with the target."""
    precision: Literal["auto", "fp32", "bf16", "int8", "int8-fast", "int4", "int4-fast"] = "auto"
    """Of the modules' matrices; auto: the target's own precision, a file's own blocks where the target has them."""
    draft_vocabulary: int = 32768
    """How many of the target's first tokens are guessed beside those of the text (``text_vocabulary``): with all of
    them, most of a guess's time would go into the output head. Tokenizers number tokens from the frequent to the rare
    (FR-Spec, arXiv:2502.14856). 0: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = self.draft_vocabulary
        require(asked >= 0, f"draft_vocabulary is {asked}; it must be 0 or more, 0 for all tokens.")

    def check_files(self) -> None:
        """As ``options.check_files`` has it."""
        if self.model is not None:
            open_modules(self.model)


class MtpDrafter(HeadDrafter):
    """Runs the modules of the target's checkpoint."""

    Options = MtpOptions
    grade_rates = CONFIDENCE_RATES

    def __init__(self, context: DraftContext, options: MtpOptions) -> None:
        modules = context.require_modules()(options.model)
        require(
            modules is not None,
            f"{options.model or 'the target'} has no multi-token modules that can be read; name a checkpoint that has "
            "them as the draft model, or use another drafter.",
        )
        assert modules is not None
        backend = context.require_runner().backend
        config, kit = backend.config, backend.kit
        said = options.draft_vocabulary if options.draft_vocabulary < context.vocab_size else 0
        running = kit.run(PASSES, modules, context.require_tables()(), options.precision, vocabulary=said)
        context.tell(f"Multi-token modules run in {kit.where(PASSES, modules)} ({running.name}).")
        texts = running.text_rows(context.vocab_size) if options.text_vocabulary else None
        vocabulary = DraftVocabulary(running, context.vocab_size, texts, options.text_vocabulary, running.text_eps)
        # Each further module begins one token later.
        least = max(1, len(modules.modules))
        window = options.window or None
        taps: tuple[int, ...] = (config.num_layers,) if modules.feeds_unnormed else (FINAL_TAP,)
        taps = taps if modules.streams is None else stream_taps(modules.streams)
        reader = Reader(context, taps, running, running.read, vocabulary, least_known=least, window=window)
        called = running.growth(options.width, vocabulary.ids)
        growth: TreeGrowth
        if called is None:
            new_trees = partial(options.new_trees, kit=kit)
            growth = SteppedGrowth(running, vocabulary, options, new_trees, options.width, running.said_states)
        else:
            growth = CalledGrowth(called, reader, options, kit)
        super().__init__(reader, growth)
