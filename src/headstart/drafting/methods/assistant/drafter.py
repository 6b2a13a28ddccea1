"""Gemma 4's assistants (Google 2026; transformers' ``SinglePositionMultiTokenCandidateGenerator``).

Nothing is read along with a text: keys and values are the target's own, so an assistant knows a text as soon as the
target does. What it says of a path depends on the path through the state that it feeds back alone, so its guesses grow
as a tree where it is sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.head_trees.head_source import ConfidenceOptions, open_head, tell_place
from headstart.drafting.head_trees.last_states import LastStates, grow_where_ready
from headstart.drafting.head_trees.noise_ranking import NoiseRanking
from headstart.drafting.head_trees.trees import CONFIDENCE_RATES, Ids, Scores
from headstart.drafting.method import AS_THE_MODEL, NATIVE
from headstart.drafting.methods.assistant.head import KIND, AssistantHead
from headstart.drafting.options import require
from headstart.passes.backend import LendsKeys
from headstart.passes.batch import FINAL_TAP, IntArray
from headstart.passes.draft_tree import DraftTree


@dataclass(frozen=True)
class AssistantOptions(ConfidenceOptions):
    model: str | None = None
    """Directory of the assistant (``google/gemma-4-...-assistant``); None: the one that lies beside the model or in the
    hub's cache."""
    precision: Literal["auto", "fp32", "bf16", "int8", "int8-fast", "int4", "int4-fast"] = "auto"
    """Of the assistant's matrices; auto: int8 in the native pass, else the target's own."""


class AssistantDrafter:
    """Runs an assistant over the target's keys and values."""

    Options = AssistantOptions
    grade_rates = CONFIDENCE_RATES
    needs = TargetSignals(taps=(FINAL_TAP,))

    def __init__(self, context: DraftContext, options: AssistantOptions) -> None:
        self._runner = context.require_runner()
        backend = self._runner.backend
        require(
            isinstance(backend, LendsKeys),
            "the target is run by transformers' own code, whose keys and values no assistant can read; use another "
            "drafter.",
        )
        assert isinstance(backend, LendsKeys)
        self._target = backend
        family = backend.config.family
        require(
            options.model is not None or context.stand_in is not None or family.startswith("gemma4"),
            f"Gemma 4's models alone have assistants, and this one is of family {family}; headstart drafters --model "
            "lists what guesses for it.",
        )
        head = open_head(context, options.model, KIND, AssistantHead)
        self._reader = backend.key_reader(head.config, head.weights, options.precision)
        tell_place(context, head, NATIVE if backend.name.startswith("native") else AS_THE_MODEL)
        device = backend.embedded(np.zeros(1, np.int32)).device
        self._before, self._after = (each.to(device, torch.float32) for each in (head.before, head.after))
        self._clusters = None if head.clusters is None else head.clusters.to(device)
        self._options, self._vocab_size = options, context.vocab_size
        self._states = LastStates()

    @property
    def nbytes(self) -> int:
        """See ``Sized``."""
        clusters = 0 if self._clusters is None else self._clusters.nbytes
        return self._reader.nbytes + self._before.nbytes + self._after.nbytes + clusters

    def begin(self, sequence: SequenceView) -> None:
        self.end(sequence.id)

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``."""
        self._states.fork(source.id, sequence.id)

    def end(self, sequence_id: int) -> None:
        self._states.forget(sequence_id)

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        self._states.observe(outcomes)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return grow_where_ready(sequences, budgets, self._is_ready, self._grow)

    def _is_ready(self, sequence: SequenceView) -> bool:
        """Whether the target has seen all but the root, and its last state is known."""
        cache = self._runner.cache
        seen = cache.length(sequence.id) if sequence.id in cache else 0
        return seen == len(sequence.tokens) - 1 and self._states.reach(sequence)

    @torch.inference_mode()
    def _grow(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        """A pass of the assistant for each level, over the beams of all sequences."""
        options, cache, count = self._options, self._runner.cache, len(sequences)
        ids = [sequence.id for sequence in sequences]
        lengths = np.array([cache.length(each) for each in ids], dtype=np.int32)
        tables = cache.tables(ids).blocks
        ranking = NoiseRanking(sequences, torch.arange(self._vocab_size), self._vocab_size)
        trees = options.new_trees(budgets, self._runner.backend.kit)
        depth = min(options.draft_tokens, max(budget.depth for budget in budgets))
        tokens = np.array([sequence.tokens[-1] for sequence in sequences], dtype=np.int32)
        states, width = self._states.of(sequences), 1
        for level in range(1, depth + 1):
            states, logits = self._step(tokens, states, np.repeat(lengths, width), np.repeat(tables, width, axis=0))
            scores = ranking.scores(logits.view(count, width, -1), level)
            beams = trees.grow(*_best(scores, options.width))
            if level == depth or beams is None:
                break
            rows = beams.parents + width * np.arange(count)[:, None]
            states, width = states[torch.from_numpy(rows.ravel()).to(states.device)], beams.tokens.shape[1]
            tokens = beams.tokens.ravel().astype(np.int32)
        return trees.trees(options.tree_nodes, budgets)

    def _step(self, tokens: IntArray, states: Tensor, lengths: IntArray, tables: IntArray) -> tuple[Tensor, Tensor]:
        """Tokens and the states before them -> states [row, target hidden] to go on from, and logits [row, vocab]."""
        embedded = self._target.embedded(tokens)
        inputs = F.linear(torch.cat((embedded, states.to(embedded.device)), dim=-1), self._before)
        clusters, storage = self._clusters, self._runner.cache.storage
        normed, logits = self._reader.read(inputs, lengths, tables, storage, says=clusters is None)
        if clusters is not None:
            logits = clusters.logits(normed.to(clusters.head.dtype))
        return F.linear(normed, self._after), logits


def _best(scores: Tensor, ranks: int) -> tuple[Scores, Ids]:
    """Log-probabilities and ids of the best tokens of float32 scores [sequence, beam, vocab], the best first."""
    best = scores.topk(min(ranks, scores.shape[-1]))
    log_probs = best.values - scores.logsumexp(-1, keepdim=True)
    return log_probs.cpu().numpy(), best.indices.cpu().numpy()
