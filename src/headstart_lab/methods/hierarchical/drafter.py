"""A draft model that is drafted for itself: exact speculation inside the drafter (Spector & Re 2023,
arXiv:2308.04623, stage their draft model likewise).

Inside, the draft model's law q takes the target's place. What the inner rounds say, accepted guesses and corrections
alike, are draws from q one after another, so to the target the draft is an ordinary sampled chain with the rows of q.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.common_prefix import common_prefix
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.options import require
from headstart.drafting.registry import create_drafter
from headstart.drafting.second_models.chains import ChainDraft
from headstart.drafting.second_models.draft_law import DraftLaws
from headstart.drafting.second_models.model_source import DraftModelOptions, open_second_model
from headstart.errors import ConfigError
from headstart.passes.backend import Backend
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.passes.runner import Span
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.verification.base import Verdict
from headstart.verification.verify import verify

_RIDE_ALONG = 8
"""Unread tokens that a pass over an inner tree takes along; more are read before."""


@runtime_checkable
class Rewinding(Protocol):
    """Can forget the last tokens of a sequence cheaply."""

    def rewind(self, sequence: SequenceView) -> None:
        """The sequence's last tokens were taken back; ``tokens`` are what is left."""
        ...


@dataclass(frozen=True)
class HierarchicalOptions(DraftModelOptions):
    inner: str = "ngram"
    """The drafter that drafts for the draft model."""
    inner_options: dict[str, object] = field(default_factory=dict)
    """Its options."""
    inner_nodes: int = 8
    """Nodes of its trees at most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.inner_nodes >= 1, f"inner_nodes is {self.inner_nodes}; it must be 1 or more.")


class HierarchicalDrafter:
    """A chain of draws from a draft model, made in fewer passes of it by a drafter of its own.

    The inner drafter sees the draft as committed text. Where the target rejects some of it, the inner drafter is
    rewound; one that cannot be begins anew, at the cost of reading the sequence again (cheap for n-gram tables).
    """

    Options = HierarchicalOptions
    needs = TargetSignals()

    def __init__(self, context: DraftContext, options: HierarchicalOptions) -> None:
        self._options = options
        self._laws = DraftLaws(context, options)
        self._model = open_second_model(context, options)
        self._max_positions = self._model.runner.backend.config.max_positions
        inner_context = replace(context, runner=self._model.runner, lend_layers=_lend_none)
        self._inner = create_drafter(options.inner, inner_context, **options.inner_options)
        require(
            not self._inner.needs.taps,
            f"inner is {options.inner!r}, which reads hidden states that draft models do not hand out; "
            "choose a drafter without a trained head.",
        )
        self._views: dict[int, InnerSequence] = {}
        """What the inner drafter sees: sequences with the drafts so far as if they were committed."""

    @property
    def nbytes(self) -> int:
        return self._model.nbytes

    def begin(self, sequence: SequenceView) -> None:
        pass

    def fork(self, source: SequenceView, sequence: SequenceView) -> None:
        """See ``Forking``. The inner drafter begins with the sequence when it is first needed."""
        self._model.fork(source.id, sequence.id)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        drafts = [
            ChainDraft(sequence, self._laws.of(sequence), min(self._options.draft_tokens, budget.nodes, budget.depth))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        growing = {draft.sequence.id: draft for draft in drafts if not draft.full}
        for draft in growing.values():
            self._follow(draft)
        unread = self._almost_caught_up([draft.sequence for draft in growing.values()])
        while unread:
            unread = self._inner_round(growing, unread)
        return [draft.tree() for draft in drafts]

    def _almost_caught_up(self, sequences: Sequence[SequenceView]) -> dict[int, list[int]]:
        """The model reads each sequence until few enough tokens are left, the root among them, for the pass that checks
        guesses: id -> those tokens. Sequences are left out as in ``SecondModel.catch_up``."""
        unread = self._model.unread(sequences)
        long = {each: tokens[:-1] for each, tokens in unread.items() if len(tokens) > _RIDE_ALONG}
        self._model.read_all(long)
        return {each: tokens[-1:] if each in long else tokens for each, tokens in unread.items()}

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        for outcome in outcomes:
            self._model.roll_back(outcome.sequence)
            view = self._views.get(outcome.sequence.id)
            # Else the inner drafter hears of it when it is next needed.
            if view is not None and isinstance(self._inner, Rewinding):
                self._take_back(view, outcome.sequence)

    def rewind(self, sequence: SequenceView) -> None:
        """The sequence's last tokens were taken back."""
        self._laws.rewind(sequence)
        self._model.roll_back(sequence)

    def end(self, sequence_id: int) -> None:
        self._laws.forget(sequence_id)
        self._model.forget(sequence_id)
        if self._views.pop(sequence_id, None) is not None:
            self._inner.end(sequence_id)

    def _follow(self, draft: ChainDraft) -> None:
        """Show the inner drafter what was committed since, and take back what was rejected."""
        sequence = draft.sequence
        view = self._views.get(sequence.id)
        if view is None:
            view = self._views[sequence.id] = InnerSequence.of(
                sequence, tokens=list(sequence.tokens), params=draft.law.transforms.params
            )
            self._inner.begin(view)
        view.outer = sequence
        view.noise = sequence.noise if draft.law.coupled else round_noise(sequence.noise, len(sequence.tokens) - 1)
        if not self._take_back(view, sequence):
            view.tokens += sequence.tokens[len(view.tokens) :]
            self._inner.end(sequence.id)
            self._inner.begin(view)
            return
        agreed = len(view.tokens)
        if agreed < len(sequence.tokens):
            view.tokens += sequence.tokens[agreed:]
            read = np.asarray(view.tokens[agreed - 1 : -1], dtype=np.int32)
            self._inner.observe([RoundOutcome(view, agreed - 1, read, DraftTree.empty())])

    def _take_back(self, view: InnerSequence, sequence: SequenceView) -> bool:
        """Cut the view to what was committed of it; False where the inner drafter still knows more than that."""
        agreed = common_prefix(view.tokens, sequence.tokens, len(sequence.tokens))
        rejected = agreed < len(view.tokens)
        del view.tokens[agreed:]
        if not isinstance(self._inner, Rewinding):
            return not rejected
        # Also where nothing was: it never heard of the round that completed the draft.
        self._inner.rewind(view)
        return True

    def _inner_round(self, drafts: Mapping[int, ChainDraft], unread: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """One pass of the draft model over inner trees: the same as ``decode_round`` one storey below.

        ``unread``: id -> tokens that the draft model has not read, the inner root last.

        Returns:
            The same after the round, for the drafts that go on.
        """
        budgets = self._budgets(drafts, unread)
        views = [self._views[sequence_id] for sequence_id in budgets]
        trees = dict(zip(budgets, self._inner.propose(views, list(budgets.values())), strict=True))
        spans = [self._span(sequence_id, unread[sequence_id], tree) for sequence_id, tree in trees.items()]
        left: dict[int, list[int]] = {}
        outcomes = []
        with self._model.passing(spans) as outputs:
            for span, output in zip(spans, outputs, strict=True):
                sequence_id = span.sequence_id
                draft, view, tree = drafts[sequence_id], self._views[sequence_id], trees[sequence_id]
                root_row = len(span) - len(tree) - 1
                laws = DraftNodeLaws(draft, tree, self._model.fit(output.logits[root_row:]), view.noise)
                verdict = verify(tree, laws, view.noise, len(view.tokens) - 1, view.speculation.verify)
                self._model.keep(span, [*range(root_row + 1), *(root_row + 1 + node for node in verdict.path)])
                if laws.extend(draft, verdict):
                    outcome = _outcome(view, tree, verdict, laws, self._inner.needs.top_ids)
                    view.tokens += outcome.committed
                    outcomes.append(outcome)
                    left[sequence_id] = [verdict.token]
        self._inner.observe(outcomes)
        return left

    def _budgets(self, drafts: Mapping[int, ChainDraft], unread: Mapping[int, list[int]]) -> dict[int, DraftBudget]:
        """What may be guessed in the next inner round; drafts without room for a single row are left out.

        Settled before anything is guessed: an inner tree that turned out not to fit would have to be dropped for
        what it holds. A round says one token more than its tree is deep, so no draft outgrows its length.
        """
        budgets: dict[int, DraftBudget] = {}
        for sequence_id in unread:
            draft, view = drafts[sequence_id], self._views[sequence_id]
            room = self._max_positions - len(view.tokens)
            if room >= 0:
                depth = min(draft.length - len(draft.tokens) - 1, room)
                budgets[sequence_id] = DraftBudget(self._options.inner_nodes if depth else 0, depth)
        rows = {sequence_id: len(unread[sequence_id]) + budget.nodes for sequence_id, budget in budgets.items()}
        if len(self._model.with_room(rows)) == len(rows):
            return budgets
        roots = self._model.with_room({sequence_id: len(unread[sequence_id]) for sequence_id in budgets})
        return dict.fromkeys(roots, DraftBudget(0, 0))

    def _span(self, sequence_id: int, unread: Sequence[int], tree: DraftTree) -> Span:
        """Unread tokens as a chain, the inner root last, and the tree below it."""
        rows = len(unread)
        chain = np.arange(rows, dtype=np.int32)
        # Guesses that the draft model does not know have probability 0 there, so no walk gets to what they yield.
        guesses = np.minimum(tree.tokens, np.int32(self._model.runner.backend.config.vocab_size - 1))
        return Span(
            sequence_id,
            np.concatenate([np.asarray(unread, dtype=np.int32), guesses]),
            np.concatenate([chain - np.int32(1), tree.parents + np.int32(rows)]),
        )


class DraftNodeLaws:
    """The draft model's law at the nodes of an inner tree, along the draft (``verification.base.NodeLaws``).

    Args:
        draft: as it stands before the inner round.
        tree: the inner guesses.
        logits: [1 + node, vocab]; row 0 is the inner root's.
        noise: of the inner rounds.
    """

    def __init__(self, draft: ChainDraft, tree: DraftTree, logits: Tensor, noise: SequenceNoise) -> None:
        self.logits = logits
        self._sequence = draft.sequence
        self._law = draft.law
        self._drafted = list(draft.tokens)
        self._tree = tree
        self._noise = noise
        self._rows: dict[int, Tensor] = {}

    @property
    def greedy(self) -> bool:
        return self._law.transforms.greedy

    def probs(self, node: int) -> Tensor:
        row = self._rows.get(node)
        if row is None:
            row = self._rows[node] = self._law.probs(self.logits[node + 1], self._path(node))
        return row

    def sample(self, node: int) -> int:
        path = self._path(node)
        if self._law.point_masses:
            return self._law.decide(self.logits[node + 1], self._sequence, path)
        # From the very row that is handed on as the draft's law.
        weights = self.probs(node).numpy()
        ids = np.flatnonzero(weights)
        return self._noise.draw_at(len(self._sequence.tokens) + len(path), len(weights), weights[ids], ids)

    def peak_ratio(self, node: int, token: int) -> float:
        """Only lossy rules ask for it, and the inner rule is exact."""
        raise NotImplementedError

    def extend(self, draft: ChainDraft, verdict: Verdict) -> bool:
        """Add what a round said to the draft, up to where confidence ends it; whether the draft goes on."""
        for node, token in zip((ROOT, *verdict.path), _tokens_of(self._tree, verdict), strict=True):
            if not self._law.is_confident(self.logits[node + 1], self._path(node)):
                # Looks at the law before the token, never at the token: what is dropped is not chosen by value.
                return False
            if not self._law.point_masses:
                draft.rows.append(self.probs(node))
            draft.tokens.append(token)
        return not draft.full

    def _path(self, node: int) -> list[int]:
        return [*self._drafted, *(int(self._tree.tokens[step]) for step in self._tree.path_to(node))]


def round_noise(noise: SequenceNoise, root_position: int) -> SequenceNoise:
    """Noise for the inner rounds within one round.

    Inner rounds of several rounds meet the same positions, and sampled draws must not share noise
    (docs/exactness.md 0); so each round has a key of its own, drawn from the sequence's nested noise.
    """
    nested = noise.nested()
    low, high = (int(nested.uniform(Stream.DRAFT, root_position, word) * 2**32) for word in range(2))
    return SequenceNoise(high << 32 | low, noise.sample, kernels=noise.kernels)


def _lend_none(layers: Sequence[int]) -> Backend:
    raise ConfigError("the inner drafter's model is None, and draft models lend no layers; name it in inner_options.")


def _tokens_of(tree: DraftTree, verdict: Verdict) -> tuple[int, ...]:
    return (*(int(tree.tokens[node]) for node in verdict.path), verdict.token)


def _outcome(view: InnerSequence, tree: DraftTree, verdict: Verdict, laws: DraftNodeLaws, top_ids: int) -> RoundOutcome:
    """What the inner drafter hears of its round; ``view`` as it stood before."""
    return RoundOutcome(
        view,
        first_position=len(view.tokens) - 1,
        row_tokens=np.concatenate([np.asarray(view.tokens[-1:], dtype=np.int32), tree.tokens]),
        draft=tree,
        accepted=verdict.path,
        committed=_tokens_of(tree, verdict),
        top_ids=laws.logits.topk(min(top_ids, laws.logits.shape[-1])).indices.numpy(force=True) if top_ids else None,
    )
