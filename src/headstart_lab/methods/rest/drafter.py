"""Retrieval from a store of texts (REST, He et al. 2023, arXiv:2311.08252).

The longest suffix of the sequence that stands somewhere in the store is looked up, and what followed it there becomes
a tree: the most frequent continuations first. The store never changes; beside it are texts that the engine was given
for a request's scope (``TextStore``). The best text is what the target itself said
before, such as the corpus of a training; other texts of the same subject serve as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext, ScopedMemory
from headstart.drafting.continuations import GRADE_RATES, Proposal, grow_best_first
from headstart.drafting.options import require
from headstart.drafting.text_store import TextStore
from headstart.errors import CheckpointError, ConfigError
from headstart.models.files import exists
from headstart.passes.draft_tree import DraftTree
from headstart_lab.methods.rest.datastore import LONGEST, Datastore
from headstart_train.text.corpus import Corpus

_PLACES = 64
"""Places that are looked at where a string stands in more."""
_GIVEN_TOKENS = 1 << 15
"""Of a scope's texts that came while the drafter was at work, the newest; sorting so many takes some hundredths of a
second."""
Reached = tuple[int, Sequence[Sequence[int]]]
"""How many tokens these continuations have in common, and the continuations."""


@dataclass(frozen=True)
class RestOptions:
    texts: str | None = None
    """Where the texts are: the ``corpus`` directory of a ``headstart train``, or a plain-text file in UTF-8, of which
    every paragraph (up to an empty line) is a text of its own. It must be given."""
    tree_nodes: int = 15
    """Nodes of a tree at most (with the root one tile of 16 rows), 64 in the paper."""
    draft_tokens: int = 10
    """Tokens of a path at most, as in the paper."""
    max_match: int = 16
    """Tokens of a matched suffix at most, as in the paper."""
    min_probability: float = 0.1
    """No node is proposed that fewer of the places go on with."""

    def __post_init__(self) -> None:
        require(self.tree_nodes >= 1, f"tree_nodes is {self.tree_nodes}; it must be 1 or more.")
        require(self.draft_tokens >= 1, f"draft_tokens is {self.draft_tokens}; it must be 1 or more.")
        require(1 <= self.max_match <= LONGEST, f"max_match is {self.max_match}; it must lie in [1, {LONGEST}].")
        require(0 <= self.min_probability <= 1, f"min_probability is {self.min_probability}; it must lie in [0, 1].")

    def check_files(self) -> None:
        """As ``options.check_files`` has it."""
        self.path()

    def path(self) -> Path:
        """Where the texts are.

        Raises:
            ConfigError: it is not said.
            CheckpointError: nothing is there.
        """
        if self.texts is None:
            raise ConfigError("texts is left out; name a training's corpus directory, or a text file.")
        path = Path(self.texts)
        if not exists(path):
            raise CheckpointError(
                f"there is no {self.texts!r} to take texts from; name a training's corpus directory, or a text file."
            )
        return path


class RestDrafter:
    """A tree of what followed the longest known suffix in a store of texts."""

    Options = RestOptions
    needs = TargetSignals()
    grade_rates = GRADE_RATES

    def __init__(self, context: DraftContext, options: RestOptions) -> None:
        self._options = options
        self._store = _open(context, options.path())
        self._scope_of, self._texts = context.scope_of, context.texts
        if self._texts is not None:
            self._texts.is_read = True
        self._given = ScopedMemory(GivenTexts)

    def begin(self, sequence: SequenceView) -> None:
        if self._texts is not None:
            scope = self._scope_of(sequence)
            self._given[scope].read(self._texts, scope)

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [
            self._draft(sequence, budget) if budget.nodes > 0 and budget.depth > 0 else DraftTree.empty()
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass

    def _draft(self, sequence: SequenceView, budget: DraftBudget) -> DraftTree:
        options = self._options
        depth, nodes = min(budget.depth, options.draft_tokens), min(budget.nodes, options.tree_nodes)
        recent = sequence.tokens[-options.max_match :]
        found = [
            (store, *store.longest_suffix(recent, options.max_match))
            for store in (self._store, *self._given[self._scope_of(sequence)].stores)
        ]
        matched = max(longest for _, longest, *_ in found)
        if not matched:
            return DraftTree.empty()
        places = [
            place
            for store, longest, low, high in found
            if longest == matched
            for place in store.followers(low, high, matched, depth, _PLACES)
        ]
        return tree_of(places, matched, nodes, options.min_probability).tree()


class GivenTexts:
    """Texts of one scope that came while the drafter was at work, in two stores: the small one is built anew with every
    text, and goes into the large one when it has an eighth of its size."""

    def __init__(self) -> None:
        self._newest = 0
        self._old: list[list[int]] = []
        self._new: list[list[int]] = []
        self._large: tuple[Datastore, ...] = ()
        self.stores: tuple[Datastore, ...] = ()

    def read(self, store: TextStore, scope: Hashable) -> None:
        """Learn what has come since the last time."""
        self._newest, texts = store.since(scope, self._newest, _GIVEN_TOKENS)
        if not texts:
            return
        self._new += texts
        if 8 * sum(map(len, self._new)) > sum(map(len, self._old)):
            self._old, self._new = [*self._old, *self._new], []
            while sum(map(len, self._old)) > _GIVEN_TOKENS:
                del self._old[0]
            self._large = (Datastore(self._old),)
        self.stores = (*self._large, Datastore(self._new)) if self._new else self._large


def tree_of(places: Sequence[Sequence[int]], matched: int, nodes: int, least: float) -> Proposal:
    """The most frequent beginnings of the continuations ``places``, best first; the first seen of equals."""

    def children(reached: Reached, probability: float) -> list[tuple[float, int, Reached]]:
        length, members = reached
        groups: dict[int, list[Sequence[int]]] = {}
        for member in members:
            if len(member) > length:
                groups.setdefault(member[length], []).append(member)
        total = sum(map(len, groups.values()))
        return [
            (len(group) / total, token, (length + 1, group))
            for token, group in groups.items()
            if probability * len(group) >= least * total
        ]

    longest = max(map(len, places), default=0)
    return grow_best_first((0, places), children, matched=matched, nodes=nodes, depth=longest)


def _open(context: DraftContext, path: Path) -> Datastore:
    """The texts of a directory or file.

    Raises:
        ConfigError: there are none, or they are another target's.
    """
    if path.is_dir():
        corpus = Corpus.existing(path, None if context.digest is None else context.digest())
        store = Datastore(document.tokens for document in corpus)
    else:
        encode = context.require_tokenizer().encode
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as a text in UTF-8 ({error}).") from error
        store = Datastore(encode(part) for part in text.split("\n\n") if part.strip())
    if not store.size:
        raise ConfigError(f"{path} holds no text; name a corpus or a file with some.")
    return store
