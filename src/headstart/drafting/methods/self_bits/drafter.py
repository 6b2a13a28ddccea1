"""The target's own layers in few bits draft for it (Georganas et al. 2025, ML-SpecQD; Zhao et al. 2025, QSpec).

A model in 4 bits says mostly what it says in 16, and reads a quarter of the bytes for each token. Nothing is trained,
and no cache is added: drafts are written behind a sequence's tokens in the target's own cache, rolled back, and
overwritten by the pass that verifies them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from headstart.common.enumerations import Precision, VerifyRule
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.options import require
from headstart.drafting.planning.pass_trials import try_passes
from headstart.drafting.second_models.chains import draft_chains
from headstart.drafting.second_models.combs import Comb
from headstart.drafting.second_models.draft_law import DraftLawOptions, DraftLaws
from headstart.drafting.second_models.target_cache import InTargetCache
from headstart.passes.backend import GuessesForItself
from headstart.passes.draft_tree import DraftTree
from headstart.passes.rounds import Guesser, StretchDrafting, StretchLimits

_BITS = (2, 3, 4)
_TRIES = 3
_PRECISIONS = tuple(each.value for each in Precision if each not in (Precision.AUTO, Precision.FP32))


@dataclass(frozen=True)
class SelfOptions(DraftLawOptions):
    draft_tokens: int = 4
    """Depth of a draft at most."""
    bits: int | str = 4
    """Of a weight: 4, 3 or 2, or the name of a precision, as int4 or int8."""
    layers: int | None = None
    """First layers of the target that draft; None: all. Fewer guess next to nothing unless the target was trained for
    that (LayerSkip)."""
    width: int = 1
    """Guesses at each place of the chain, the likeliest of which alone is read on; further ones cost a row of the
    target's pass each. Where requests draw their guesses, one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.bits in (*_BITS, *_PRECISIONS),
            f"bits is {self.bits!r:.40}; give 4, 3 or 2, or a precision: {', '.join(_PRECISIONS)}.",
        )
        require(self.layers is None or self.layers >= 1, f"layers is {self.layers}; it must be 1 or more.")
        require(1 <= self.width <= 16, f"width is {self.width}; it must lie in 1 to 16.")


class SelfDrafter:
    """A chain of the target's own choices in fewer bits, or a tree of these and those beside them."""

    Options = SelfOptions
    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: SelfOptions) -> None:
        runner = context.require_runner()
        self._options = options
        # So what is drawn is plain decoding's, too, and rounds run in one call.
        self._laws = DraftLaws(context, options, (VerifyRule.AUTO, VerifyRule.COUPLED))
        self._backend = context.require_itself()(options.bits, options.layers)
        self._runner = runner.sharing(self._backend)
        self._model = InTargetCache(self._runner, context.vocab_size)

    @property
    def nbytes(self) -> int:
        """See ``Sized``."""
        return self._backend.nbytes

    def token_seconds(self) -> float:
        """See ``TimesTokens``."""
        return min([each.seconds for _ in range(_TRIES) for each in try_passes(self._runner, (1,))], default=math.inf)

    def begin(self, sequence: SequenceView) -> None:
        pass

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        combs = [
            Comb(sequence, self._laws.of(sequence), self._length(budget), self._options.width, budget.nodes)
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        growing = [comb for comb in combs if comb.length]
        # Each pass reads the weights anew, so that all sequences had better share it.
        chains = self._chains(growing) if self._options.width == 1 else None
        if chains is None:
            try:
                draft_chains(self._model, growing)
            finally:
                self._model.roll_back()
        else:
            for comb, chain in zip(growing, chains, strict=True):
                comb.tokens += chain[: comb.length]
        return [comb.tree() for comb in combs]

    def stretch(self, sequences: Sequence[SequenceView], limits: Sequence[StretchLimits]) -> StretchDrafting | None:
        """See ``RunsInStretches``."""
        backend, options = self._backend, self._options
        if not isinstance(backend, GuessesForItself) or backend.config.keeps_states:
            return None
        if options.width > 1 or not all([self._says_the_same(sequence) for sequence in sequences]):
            return None
        return StretchDrafting([(Guesser(backend.guesser(options.draft_tokens), _nothing),) for _ in sequences])

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def rewind(self, sequence: SequenceView) -> None:
        """The sequence's last tokens were taken back."""
        self._laws.rewind(sequence)

    def end(self, sequence_id: int) -> None:
        self._laws.forget(sequence_id)

    def _says_the_same(self, sequence: SequenceView) -> bool:
        """Whether its guesses are what the stretch would say of its logits."""
        law = self._laws.of(sequence)
        return law.point_masses and law.is_plain and law.transforms.params == sequence.params

    def _length(self, budget: DraftBudget) -> int:
        return min(self._options.draft_tokens, budget.nodes, budget.depth)

    def _chains(self, growing: Sequence[Comb]) -> list[list[int]] | None:
        return self._model.chains(
            [comb.sequence for comb in growing],
            [comb.law for comb in growing],
            max((comb.length for comb in growing), default=0),
        )


def _nothing() -> None:
    """Is to be brought up to date after a stretch: all that it knows stands in the target's cache."""
