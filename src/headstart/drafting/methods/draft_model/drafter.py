"""A smaller model drafts for the target (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals, beam_of
from headstart.drafting.context import DraftContext
from headstart.drafting.second_models.beam_drafts import draft_beams
from headstart.drafting.second_models.chains import propose_chains
from headstart.drafting.second_models.draft_law import DraftLaws
from headstart.drafting.second_models.model_source import TranslatedModelOptions, open_translated_model
from headstart.drafting.second_models.translated_model import TranslatedModel
from headstart.passes.draft_tree import DraftTree


class DraftModelDrafter:
    """A chain of draws from the draft model; greedy and coupled requests get a chain of its choices, beams the paths of
    its own beam search.

    A model with another tokenizer guesses, too (``translation``). The model has a cache of its own that is filled
    when a sequence is first drafted for.
    """

    Options = TranslatedModelOptions
    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: TranslatedModelOptions) -> None:
        self._draft_tokens = options.draft_tokens
        self._laws = DraftLaws(context, options)
        self._model, self._strings = open_translated_model(context, options)

    @property
    def nbytes(self) -> int:
        return self._model.nbytes

    @property
    def encoder_seconds(self) -> float:
        """See ``RunsAnEncoder``."""
        return self._model.encoder_seconds

    def begin(self, sequence: SequenceView) -> None:
        pass

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        self._model.fork(source.id, sequence.id)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        trees = [DraftTree.empty()] * len(sequences)
        beams = [i for i, sequence in enumerate(sequences) if beam_of(sequence) is not None]
        others = [i for i, sequence in enumerate(sequences) if beam_of(sequence) is None]
        for places, draft in ((beams, self._draft_beams), (others, self._draft_chains)):
            if places:
                drafts = draft([sequences[i] for i in places], [budgets[i] for i in places])
                for i, tree in zip(places, drafts, strict=True):
                    trees[i] = tree
        return trees

    def _draft_beams(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if isinstance(self._model, TranslatedModel):
            # Its estimates are of other tokens than those that beams are made of.
            return [DraftTree.empty()] * len(sequences)
        return draft_beams(self._model, self._laws, self._draft_tokens, sequences, budgets)

    def _draft_chains(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        if self._strings is not None:
            return self._strings.propose(sequences, budgets)
        return propose_chains(self._model, self._laws, self._draft_tokens, sequences, budgets)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            self._model.roll_back(outcome.sequence)

    def rewind(self, sequence: SequenceView) -> None:
        """The sequence's last tokens were taken back."""
        self._laws.rewind(sequence)
        self._model.roll_back(sequence)

    def end(self, sequence_id: int) -> None:
        self._laws.forget(sequence_id)
        self._model.forget(sequence_id)
