"""The only place where the target's logits become probabilities."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.engine.constraint import Forcing, Weighing
from headstart.engine.outputs import TokenLogprobs
from headstart.engine.sequence import Sequence
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.passes.runner import SpanOutput
from headstart.sampling.history import PathHistory
from headstart.sampling.transforms import checked_best, logprobs
from headstart.verification.base import Verdict


class TargetLaw:
    """The target's laws at the root and nodes of one draft, after the request's transforms, each along its own path.

    Implements ``verification.base.NodeLaws``. Lazy: a walk pays for one path, whatever the tree's size.

    Where there is no law after a guess (no token is left, or a logit is no number), plain decoding would have said the
    guess before it met that. So nothing is raised there: another law stands in, and ``heard`` keeps what a verdict says
    up to that guess. After the root it is raised.

    Args:
        output: the pass's rows; row 0 is the root's, row i + 1 node i's. Where they have best tokens in place of
            logits, the law can be sampled, and nothing else.
        draft: the tree.
        sequence: as it stood before the round.
    """

    def __init__(self, output: SpanOutput, draft: DraftTree, sequence: Sequence) -> None:
        self._logits = output.logits
        self._best: list[int] | None = None if output.best is None else output.best.tolist()
        self._draft = draft
        self._sequence = sequence
        self._root_position = len(sequence.tokens) - 1
        self._transforms = sequence.transforms
        constraint = sequence.constraint
        self._forcing: Forcing | None = None
        # Most have no constraint, and to ask for a protocol is dear.
        if constraint is not None and isinstance(constraint, Forcing):
            self._forcing = constraint
        self._lawless: set[int] = set()
        """Nodes after which there is no law."""

    @property
    def greedy(self) -> bool:
        return self._transforms.greedy

    def probs(self, node: int) -> Tensor:
        """float64 [vocab]: the law of the token after ``node``."""
        try:
            if (token := self._forced(node)) is None:
                return self._transforms.law(self._row(node), self._history(node))
        except Exception as error:
            token = self._stand_in(node, error)
        return torch.nn.functional.one_hot(torch.tensor(token), self._transforms.vocab_size).double()

    def sample(self, node: int) -> int:
        """The token after ``node``: the argmax if greedy, else drawn with the noise of the token's own position."""
        try:
            if self._best is not None:
                return checked_best(self._best[node + 1])
            if (token := self._forced(node)) is not None:
                return token
            position = self._root_position + len(self._draft.path_to(node)) + 1
            return self._transforms.sample(self._row(node), self._sequence.noise, position, self._history(node))
        except Exception as error:
            return self._stand_in(node, error)

    def heard(self, verdict: Verdict) -> Verdict:
        """What a verdict says, up to the first guess after which there is no law."""
        for depth, node in enumerate(verdict.path):
            if node in self._lawless:
                return Verdict(verdict.path[:depth], int(self._draft.tokens[node]))
        return verdict

    def log_probs(self, node: int) -> NDArray[np.float32]:
        """float32 [vocab]: log-probabilities of the token after ``node``, and the request's transforms over them, as
        transformers applies its processors in beam search. They need not sum to 1: a forced token has 0 there.

        Raises:
            RequestError: a logit is not a number.
        """
        # One row at a time, so that it never depends on its neighbours.
        row = self._logits[node + 1].float().cpu().log_softmax(-1)
        log_probs = self._transforms.processed_log_probs(row, self._history(node))
        constraint = self._sequence.constraint
        if constraint is None:
            return log_probs
        # Beams share their constraint, which therefore stands where the output begins.
        said = [*self._sequence.output, *self._path_tokens(node)]
        log_probs = np.where(constraint.mask(said), log_probs, np.float32(-np.inf))
        if isinstance(constraint, Weighing):
            log_probs = constraint.weighed(torch.from_numpy(log_probs), said).numpy()
        if self._forcing is not None and (token := self._forcing.forced(said)) is not None:
            log_probs[token] = 0
        return log_probs

    def peak_ratio(self, node: int, token: int) -> float:
        """p(token) / max p after ``node``, before temperature and truncation."""
        try:
            if (forced := self._forced(node)) is None:
                return self._transforms.peak_ratio(self._row(node), token, self._history(node))
        except Exception as error:
            forced = self._stand_in(node, error)
        return float(token == forced)

    def logprobs(self, node: int, token: int, count: int) -> TokenLogprobs:
        """Log-probabilities of ``token`` and of the ``count`` best after ``node``, before any transform."""
        return TokenLogprobs(token, *logprobs(self._logits[node + 1], token, count))

    def _stand_in(self, node: int, error: Exception) -> int:
        """A token in place of a law that is none."""
        if node == ROOT:
            raise error
        self._lawless.add(node)
        return 0

    def _forced(self, node: int) -> int | None:
        """The token that stands after ``node`` whatever the model and the request's transforms think of it."""
        return None if self._forcing is None else self._forcing.forced(self._path_tokens(node))

    def _row(self, node: int) -> Tensor:
        """Logits after ``node``; where the request is constrained, -inf for all that may not be said there."""
        row = self._logits[node + 1]
        constraint = self._sequence.constraint
        if constraint is None:
            return row
        path = self._path_tokens(node)
        row = row.masked_fill(~torch.from_numpy(constraint.mask(path)).to(row.device), -torch.inf)
        return constraint.weighed(row, path) if isinstance(constraint, Weighing) else row

    def _history(self, node: int) -> PathHistory | None:
        return self._sequence.history.along(self._path_tokens(node)) if self._transforms.needs_history else None

    def _path_tokens(self, node: int) -> list[int]:
        tokens: list[int] = self._draft.tokens[self._draft.path_to(node)].tolist()
        return tokens
