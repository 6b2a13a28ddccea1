"""Multi-token modules that came with the target (DeepSeek-V3, arXiv:2412.19437, section 2.2).

A chain of modules, each of which reads a token and what the one before it made of the token before: the first says the
next token, the second the one after. Their tree grows where they are sure, as EAGLE-2's; beyond the last module that
one goes on from its own states, which is all that a checkpoint with one module can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.growing import GrowingDrafter
from headstart.drafting.head_trees.read_along import SpeakingOptions
from headstart.drafting.head_trees.reading import Reading
from headstart.drafting.head_trees.stepping import SteppingDrafter
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES, HeadTrees
from headstart.drafting.options import require
from headstart.models.checkpoint import open_checkpoint
from headstart.passes.batch import FINAL_TAP
from headstart.passes.draft_tree import DraftTree


@dataclass(frozen=True)
class MtpOptions(SpeakingOptions):
    model: str | None = None
    """A checkpoint whose modules are used, of a model of the target's shape: for a file of the target that lacks them,
    or modules that were trained on; None: those that came with the target."""
    precision: Literal["auto", "fp32", "bf16", "int8", "int8-fast", "int4", "int4-fast"] = "auto"
    """Of the modules' matrices; auto: the target's own precision, a file's own blocks where the target has them."""
    draft_vocabulary: int = 16384
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
            open_checkpoint(self.model)


class MtpDrafter(SteppingDrafter, GrowingDrafter):
    """Runs the modules of the target's checkpoint."""

    Options = MtpOptions
    grade_rates = CONFIDENCE_RATES
    _options: MtpOptions

    def __init__(self, context: DraftContext, options: MtpOptions) -> None:
        modules = context.require_modules()(options.model)
        require(
            modules is not None,
            f"{options.model or 'the target'} has no multi-token modules that can be read; name a checkpoint that has "
            "them as the draft model, or use another drafter.",
        )
        assert modules is not None
        tables = context.require_tables()().with_others(modules.embedding, modules.head)
        kit = context.require_runner().backend.kit
        vocabulary = options.draft_vocabulary if options.draft_vocabulary < context.vocab_size else 0
        self._pass = running = kit.multi_token_pass(modules, tables, options.precision, vocabulary)
        super().__init__(context, options, None, (FINAL_TAP,), running, tables, options.text_vocabulary)
        if options.text_vocabulary:
            self._vocabulary = running.text_rows(context.vocab_size)
        self._growth = running.growth(options.width, self._ids())
        self._num_modules = len(modules.modules)

    @property
    def ranks(self) -> int:
        return self._options.width

    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        return self._options.new_trees(budgets, self._kit)

    def _grow(self, drafted: Sequence[tuple[SequenceView, Reading]], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._growth is None:
            return super()._grow(drafted, budgets)
        return self._grown(self._growth, drafted, budgets)

    def _is_ready(self, sequence: SequenceView) -> bool:
        # Each further module begins one token later.
        return super()._is_ready(sequence) and self._readings[sequence.id].known >= self._num_modules
