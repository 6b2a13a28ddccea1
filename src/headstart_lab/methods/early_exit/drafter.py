"""The target's own first layers draft for it (Elhoushi et al. 2024, LayerSkip; without its training)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.options import require
from headstart.drafting.second_models.chains import propose_chains
from headstart.drafting.second_models.draft_law import DraftLawOptions, DraftLaws
from headstart.drafting.second_models.target_cache import InTargetCache
from headstart.passes.draft_tree import DraftTree


@dataclass(frozen=True)
class EarlyExitOptions(DraftLawOptions):
    layers: int | None = None
    """Layers that draft; None: a third of the target's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.layers is None or self.layers >= 1, f"layers is {self.layers}; it must be 1 or more.")


class EarlyExitDrafter:
    """A chain from the first layers, the final norm and the head, in the target's own cache.

    Below the exit the cache already holds what the draft needs. Rows of the draft are written after the sequence's
    tokens and rolled back; the verification pass writes all layers of them anew.
    """

    Options = EarlyExitOptions
    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: EarlyExitOptions) -> None:
        runner = context.require_runner()
        require(
            runner.backend.opens_layers,
            "the target is run by transformers' own code, which cannot stop at a layer; use another drafter.",
        )
        available = runner.backend.config.num_layers
        layers = max(1, round(available / 3)) if options.layers is None else options.layers
        require(layers < available, f"layers is {layers}; the target has {available}, and fewer must draft.")
        self._draft_tokens = options.draft_tokens
        self._laws = DraftLaws(context, options)
        self._model = InTargetCache(runner, context.vocab_size, layers)

    def begin(self, sequence: SequenceView) -> None:
        pass

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        try:
            return propose_chains(self._model, self._laws, self._draft_tokens, sequences, budgets)
        finally:
            self._model.roll_back()

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def rewind(self, sequence: SequenceView) -> None:
        """The sequence's last tokens were taken back."""
        self._laws.rewind(sequence)

    def end(self, sequence_id: int) -> None:
        self._laws.forget(sequence_id)
