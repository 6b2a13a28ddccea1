"""The target's own first layers draft for it (Elhoushi et al. 2024, LayerSkip; without its training)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.options import require
from headstart.drafting.second_models.chains import propose_chains
from headstart.drafting.second_models.draft_law import DraftLawOptions, DraftLaws, fit_vocabulary
from headstart.passes.cache.states import Mark
from headstart.passes.draft_tree import DraftTree
from headstart.passes.runner import ModelRunner, Span


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
        self._model = FirstLayers(runner, layers, context.vocab_size)

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


class FirstLayers:
    """Reads on in the target's cache through some layers only, until it is rolled back."""

    def __init__(self, runner: ModelRunner, layers: int, vocab_size: int) -> None:
        self._runner = runner
        self._layers = layers
        self._vocab_size = vocab_size
        self._marks: dict[int, Mark] = {}
        """id -> where all layers stand."""

    def catch_up(self, sequences: Sequence[SequenceView]) -> dict[int, Tensor]:
        """See ``chains.Reader``."""
        cache = self._runner.cache
        self._marks = {sequence.id: cache.mark(sequence.id) for sequence in sequences}
        return self._read({sequence.id: sequence.tokens[self._marks[sequence.id].length :] for sequence in sequences})

    def read(self, tokens: Mapping[int, int]) -> dict[int, Tensor]:
        """See ``chains.Reader``."""
        return self._read({sequence_id: [token] for sequence_id, token in tokens.items()})

    def roll_back(self) -> None:
        """Leave the cache as it was before ``catch_up``."""
        for sequence_id, mark in self._marks.items():
            self._runner.cache.return_to(sequence_id, mark)
        self._marks = {}

    def _read(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, Tensor]:
        cache = self._runner.cache
        spans: list[Span] = []
        free = cache.free
        for sequence_id, unread in tokens.items():
            needed = cache.needs(sequence_id, len(unread), final=True)
            beyond = cache.length(sequence_id) + len(unread) > self._runner.backend.config.max_positions
            if free.holds(needed) and not beyond:
                free -= needed
                spans.append(Span.chain(sequence_id, unread, "last"))
        if not spans:
            return {}
        with cache.reserve({span.sequence_id: len(span) for span in spans}, final=tokens):
            outputs = self._runner.forward(spans, num_layers=self._layers)
            for span in spans:
                cache.commit(span.sequence_id, range(len(span)))
        return {
            span.sequence_id: fit_vocabulary(output.logits[-1], self._vocab_size)
            for span, output in zip(spans, outputs, strict=True)
        }
