"""Multi-token modules that came with the target (DeepSeek-V3, arXiv:2412.19437, section 2.2).

A chain of modules, each of which reads a token and what the one before it made of the token before: the first says the
next token, the second the one after. Their tree grows where they are sure, as EAGLE-2's; beyond the last module that
one goes on from its own states, which is all that a checkpoint with one module can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import ConfidenceOptions
from headstart.drafting.head_trees.stepping import SteppingDrafter
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES, HeadTrees
from headstart.drafting.options import require
from headstart.models.checkpoint import open_checkpoint
from headstart.passes.batch import FINAL_TAP


@dataclass(frozen=True)
class MtpOptions(ConfidenceOptions):
    model: str | None = None
    """A checkpoint whose modules are used, of a model of the target's shape: for a file of the target that lacks them,
    or modules that were trained on; None: those that came with the target."""

    def check_files(self) -> None:
        """As ``options.check_files`` has it."""
        if self.model is not None:
            open_checkpoint(self.model)


class MtpDrafter(SteppingDrafter):
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
        tables = context.require_tables()()
        self._pass = context.require_runner().backend.kit.multi_token_pass(modules, tables, options.precision)
        super().__init__(context, options, None, (FINAL_TAP,), self._pass, tables)
        self._num_modules = len(modules.modules)

    @property
    def ranks(self) -> int:
        return self._options.width

    def new_trees(self, budgets: Sequence[DraftBudget]) -> HeadTrees:
        return self._options.new_trees(budgets, self._kit)

    def _is_ready(self, sequence: SequenceView) -> bool:
        # Each further module begins one token later.
        return super()._is_ready(sequence) and self._readings[sequence.id].known >= self._num_modules
