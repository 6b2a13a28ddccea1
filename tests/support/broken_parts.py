"""Drafters, rules and backends that are wrong on purpose: an audit that passes them is blind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from toys import ToyBackend, ToyStorage

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.options import NoOptions
from headstart.passes.batch import PassBatch, PassOutput
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.noise import Stream
from headstart.verification.verify import verify


class Liar:
    """Draws uniformly from the request's allowed tokens and says that it drew from a peaked law."""

    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: NoOptions = NoOptions()) -> None:  # noqa: B008
        self._vocab_size = context.vocab_size

    def begin(self, sequence: SequenceView) -> None: ...

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        trees = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            if sequence.params.greedy or not budget.nodes:
                trees.append(DraftTree.empty())
                continue
            truth, claim = self._laws(sequence)
            token = sequence.noise.draw(Stream.DRAFT, len(sequence.tokens) - 1, 0, truth)
            trees.append(DraftTree.chain([token], claim[None]))
        return trees

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def end(self, sequence_id: int) -> None: ...

    def _laws(self, sequence: SequenceView) -> tuple[torch.Tensor, torch.Tensor]:
        allowed = sequence.params.allowed_token_ids or tuple(range(self._vocab_size))
        truth = torch.zeros(self._vocab_size, dtype=torch.float64)
        truth[list(allowed)] = 1 / len(allowed)
        claim = truth / 2
        claim[allowed[0]] += 0.5
        return truth, claim


class Honest(Liar):
    """The same without the lie."""

    def _laws(self, sequence: SequenceView) -> tuple[torch.Tensor, torch.Tensor]:
        truth, _ = super()._laws(sequence)
        return truth, truth


class Pruner(Honest):
    """Leaves out draws by their value, which biases what is left."""

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        trees = super().propose(sequences, budgets)
        return [DraftTree.empty() if len(tree) and tree.tokens[0] % 2 else tree for tree in trees]


class Meddler:
    """Changes what was committed."""

    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: NoOptions = NoOptions()) -> None:  # noqa: B008
        pass

    def begin(self, sequence: SequenceView) -> None: ...

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        for sequence in sequences:
            if len(sequence.tokens) == sequence.prompt_length + 3:
                list.__setitem__(sequence.tokens, -1, 6 if sequence.tokens[-1] == 5 else 5)
        return [DraftTree.empty()] * len(sequences)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def end(self, sequence_id: int) -> None: ...


class ShapeBackend(ToyBackend):
    """Computes other logits in passes of several rows, by up to ``error``."""

    error = 0.0

    def forward(self, batch: PassBatch, storage: ToyStorage) -> PassOutput:
        output = super().forward(batch, storage)
        if batch.num_rows == 1:
            return output
        wrong = torch.tensor(np.sin(np.arange(output.logits.shape[-1]) * 9.7), dtype=torch.float32)
        return replace(output, logits=output.logits + self.error * wrong)


def verify_leniently(tree, laws, noise, root_position, rule=None, lenience=None):  # type: ignore[no-untyped-def]
    """A rule that is a little lossy."""
    return verify(tree, laws, noise, root_position, lenience=0.9)


def verify_with_the_drafts_noise(tree, laws, noise, root_position, rule=None, lenience=None):  # type: ignore[no-untyped-def]
    """A rule whose correction is drawn with the noise that the draft was drawn with."""
    verdict = verify(tree, laws, noise, root_position, rule)
    return replace(
        verdict, token=noise.draw(Stream.DRAFT, root_position, 0, laws.probs(verdict.path[-1] if verdict.path else -1))
    )
