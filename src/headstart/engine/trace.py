"""What rounds looked like from inside, recorded for sequences that ask for it alone."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from headstart.engine.outputs import TokenLogprobs
from headstart.errors import LogitsError
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.verification.base import Verdict


class TraceableLaw(Protocol):
    """What a trace reads of the target's law at the nodes of a draft (``engine.law.TargetLaw``)."""

    def probs(self, node: int) -> Tensor:
        """float64 [vocab]: the law of the token after ``node``."""
        ...

    def logprobs(self, node: int, token: int, count: int) -> TokenLogprobs:
        """Log-probabilities of ``token`` and of the ``count`` best after ``node``, before any transform."""
        ...


@dataclass(frozen=True)
class TracedNode:
    """A guess of a round's tree, or the token that the target added to it."""

    token: int
    parent: int
    """Its place among the round's ``nodes``, ROOT for the root."""
    target_prob: float
    """The target's own probability of it after its path: at temperature 1, before any transform."""
    law_prob: float
    """The same under the law that decided: after the request's transforms, one-hot where it is greedy."""
    draft_prob: float | None = None
    """The draft's probability where it was drawn at random; None: a deterministic guess, or no guess at all."""


@dataclass(frozen=True)
class RoundTrace:
    """One verified tree, without its probe nodes."""

    root: int
    """The token that the tree grows from."""
    nodes: tuple[TracedNode, ...]
    """In topological order."""
    path: tuple[int, ...]
    """Accepted nodes, from the first level down."""
    answer: TracedNode
    """The target's own token after the path. Path and answer are the round's output, unless it ended on the way."""
    seconds: float
    """From the sequence's admission to this verdict, without what recording cost."""
    draft_seconds: float
    """Of them: how long the drafter took for this tree, together with those of the pass's other sequences."""
    pass_seconds: float
    """Of them: how long the target's pass took, with all rows that rode in it."""


@dataclass
class Trace:
    """The rounds of one sequence."""

    rounds: list[RoundTrace] = field(default_factory=list)
    cost: float = 0.0
    """Seconds spent on recording: the law of every node that has children, where a round visits one path."""

    def record(
        self,
        root: int,
        draft: DraftTree,
        verdict: Verdict,
        law: TraceableLaw,
        *,
        started: float,
        draft_seconds: float,
        pass_seconds: float,
    ) -> None:
        """Add a round. Called before anything of it is committed, since laws read the history.

        ``started`` is the clock at the sequence's admission; the others are what the round's parts took.
        """
        begin = time.perf_counter()
        seconds = begin - started - self.cost
        shown = [node for node in range(len(draft)) if draft.probe is None or not draft.probe[node]]
        place = {ROOT: ROOT} | {node: index for index, node in enumerate(shown)}
        probs = _NodeProbs(law)
        drawn = dict(_draft_probs(draft))
        nodes = []
        for node in shown:
            parent, token = int(draft.parents[node]), int(draft.tokens[node])
            nodes.append(TracedNode(token, place[parent], *probs.of(parent, token), drawn.get(node)))
        last = verdict.path[-1] if verdict.path else ROOT
        answer = TracedNode(verdict.token, place[last], *probs.of(last, verdict.token))
        path = tuple(place[node] for node in verdict.path)
        self.rounds.append(RoundTrace(root, tuple(nodes), path, answer, seconds, draft_seconds, pass_seconds))
        self.cost += time.perf_counter() - begin


class _NodeProbs:
    """The target's probabilities after nodes, each node's law computed once."""

    def __init__(self, law: TraceableLaw) -> None:
        self._law = law
        self._laws: dict[int, Tensor] = {}

    def of(self, node: int, token: int) -> tuple[float, float]:
        """Of ``token`` after ``node``: before transforms, and under the law that decides."""
        if node not in self._laws:
            self._laws[node] = self._law.probs(node)
        try:
            before = math.exp(self._law.logprobs(node, token, 0).logprob)
        except LogitsError:  # after a guess that no round goes beyond
            before = 0.0
        return before, float(self._laws[node][token])


def _draft_probs(draft: DraftTree) -> Iterator[tuple[int, float]]:
    """Each draw: the node it landed on, and the probability it had there."""
    if draft.draws is None or draft.draft_probs is None:
        return
    for node, row in zip(draft.draws.nodes.tolist(), draft.draws.rows.tolist(), strict=True):
        yield node, float(draft.draft_probs[row, int(draft.tokens[node])])
