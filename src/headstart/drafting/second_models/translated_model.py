"""A draft model with another tokenizer than the target's, as drafters see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from headstart.drafting.base import DraftBudget, SequenceView
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.second_models.second_model import SecondModel
from headstart.drafting.second_models.translation import Translation
from headstart.passes.draft_tree import DraftTree


class TranslatedModel:
    """Reads sequences in its own tokens, and is heard in the target's (``chains.Reader``).

    Args:
        model: whose logits are those of its own vocabulary.
        translation: between the two.
    """

    def __init__(self, model: SecondModel, translation: Translation) -> None:
        self.model = model
        self.translation = translation
        self._views: dict[int, tuple[int, InnerSequence | None]] = {}
        """id -> tokens that were translated, and the sequence in the draft's; None where it ends inside a character."""

    @property
    def nbytes(self) -> int:
        return self.model.nbytes

    @property
    def encoder_seconds(self) -> float:
        """See ``SecondModel``."""
        return self.model.encoder_seconds

    def catch_up(self, sequences: Sequence[SequenceView]) -> dict[int, Tensor]:
        """See ``Reader``. Left out are sequences that end inside a character, too."""
        views = [view for sequence in sequences if (view := self.view(sequence)) is not None]
        return {key: self.translation.logits(row) for key, row in self.model.catch_up(views).items()}

    def read(self, tokens: Mapping[int, int]) -> dict[int, Tensor]:
        """See ``Reader``: the tokens are the target's."""
        translated = {key: self.translation.draft_id(token) for key, token in tokens.items()}
        return {key: self.translation.logits(row) for key, row in self.model.read(translated).items()}

    def roll_back(self, sequence: SequenceView) -> None:
        """See ``SecondModel``."""
        view = self.view(sequence)
        if view is not None:
            self.model.roll_back(view)

    def fork(self, source_id: int, sequence_id: int) -> None:
        """See ``SecondModel``."""
        self.model.fork(source_id, sequence_id)

    def forget(self, sequence_id: int) -> None:
        """See ``SecondModel``."""
        self._views.pop(sequence_id, None)
        self.model.forget(sequence_id)

    def view(self, sequence: SequenceView) -> InnerSequence | None:
        """The sequence in the draft's tokens; None where it ends inside a character, or holds nothing."""
        count, view = self._views.get(sequence.id, (-1, None))
        if count != len(sequence.tokens):
            tokens = self.translation.to_draft(sequence.tokens)
            view = InnerSequence.of(sequence, tokens=tokens) if tokens else None
            self._views[sequence.id] = (len(sequence.tokens), view)
        return view


class StringDrafts:
    """Chains of point masses: what the draft model would write, cut by the target's tokenizer.

    Args:
        translated: the model.
        draft_tokens: that it writes at most.
        min_confidence: it ends before a token if it holds none for at least this probable.
    """

    def __init__(self, translated: TranslatedModel, draft_tokens: int, min_confidence: float) -> None:
        self._translated = translated
        self._draft_tokens = draft_tokens
        self._min_confidence = min_confidence

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """A chain for each sequence, within its budget."""
        model, translation = self._translated.model, self._translated.translation
        lengths = {
            sequence.id: min(self._draft_tokens, budget.nodes, budget.depth)
            for sequence, budget in zip(sequences, budgets, strict=True)
        }
        views = [
            view
            for sequence in sequences
            if lengths[sequence.id] and (view := self._translated.view(sequence)) is not None
        ]
        written: dict[int, list[int]] = {view.id: [] for view in views}
        logits = model.catch_up(views) if views else {}
        while logits:
            said = {key: int(row.argmax()) for key, row in logits.items() if self._is_sure(row)}
            for key, token in said.items():
                written[key].append(token)
            further = {key: token for key, token in said.items() if len(written[key]) < self._draft_tokens}
            logits = model.read(further) if further else {}
        return [
            DraftTree.chain(
                translation.to_target(sequence.tokens, written.get(sequence.id, ()))[: lengths[sequence.id]]
            )
            for sequence in sequences
        ]

    def _is_sure(self, logits: Tensor) -> bool:
        return self._min_confidence == 0 or float(logits.softmax(-1).max()) >= self._min_confidence
