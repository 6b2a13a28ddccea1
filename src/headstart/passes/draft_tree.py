"""The draft tree: what every drafter proposes and every verification rule reads.

A chain is a tree in which every node has one child; no guess at all is the empty tree (plain decoding). The
integer structure lives in NumPy on the host, the draft's probabilities stay tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.passes.batch import RowInputs, path_lengths

ROOT = -1
"""The parent of a first-level node: the last committed token."""

MAX_GRADES = 64
"""Classes of confidence that a drafter may use."""


class TreeLaw(Enum):
    """How the nodes came to be, which decides how they may be verified."""

    POINT_MASS = "point-mass"
    """Deterministic guesses: no draw was made."""
    SAMPLED = "sampled"
    """Independent draws from rows of ``draft_probs``; duplicates kept as draws."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """Siblings drawn in order from one row, each from the rest of it."""


@dataclass(frozen=True)
class DraftBudget:
    """The most a drafter may propose for one sequence in one round; 0 nodes asks for the empty tree."""

    nodes: int
    depth: int
    prompt_rows: int = 0
    """Rows of prompts that ride in the same pass."""
    group_nodes: int = 0
    """Of a beam: nodes of its group's trees together, of which one tree may have more than ``nodes`` where the others
    have less."""
    min_probability: float | None = None
    """The probability below which a path is not worth its row, where whoever asks has measured what rows cost: for
    drafters that know how likely their guesses are."""


@dataclass(frozen=True)
class Draws:
    """The random draws behind a sampled tree, in the order they were made.

    Equal tokens under one parent share a node (nodes may be merged) but stay two draws (draws may not).
    """

    parents: NDArray[np.int32]
    """[draw] node whose law was drawn from, ROOT for the root."""
    nodes: NDArray[np.int32]
    """[draw] node the draw landed on."""
    rows: NDArray[np.int32]
    """[draw] row of ``draft_probs`` it was drawn from."""


@dataclass(frozen=True)
class DraftTree:
    """Guesses after the root. Arrays are indexed by node, in topological order (a parent before its child)."""

    tokens: NDArray[np.int32]
    """[node] guessed token ids (target vocabulary)."""
    parents: NDArray[np.int32]
    """[node] parent node, ROOT for children of the root."""
    law: TreeLaw = TreeLaw.POINT_MASS
    draws: Draws | None = None
    """None iff ``law`` is POINT_MASS. Nodes that no draw landed on are point masses (deterministic extras)."""
    draft_probs: Tensor | None = None
    """float64 [row, vocab], each row bit for bit the law a draw used, after the drafter's own transforms."""
    probe: NDArray[np.bool_] | None = None
    """[node] rows whose top ids are wanted but that are never verified nor committed; None: no such node.
    Children of a probe node are probe nodes."""
    grades: NDArray[np.int32] | None = None
    """[node] how sure the drafter is of a guess given its parent, as one of a few classes of its own, 0 to
    ``MAX_GRADES`` - 1. What a class is worth is for its reader to learn; None: the drafter tells nodes apart by
    depth and rank alone."""
    chances: NDArray[np.float64] | None = None
    """[node] how likely the drafter holds a guess to be accepted, given that its parent is; None: it does not say."""
    inputs: RowInputs | None = None
    """Nodes, probe nodes all of them, that read something else than their token; None: no such node."""

    def __post_init__(self) -> None:
        if self.tokens.shape != self.parents.shape or self.tokens.ndim != 1:
            raise ValueError(
                f"tokens {self.tokens.shape} and parents {self.parents.shape} must be two vectors of one length"
            )
        # Trees are small and made many times a round: plain lists are several times faster than arrays here.
        if not all([ROOT <= parent < node for node, parent in enumerate(self.parents.tolist())]):
            raise ValueError("parents must be ROOT or an earlier node")
        if (self.law is TreeLaw.POINT_MASS) != (self.draws is None):
            raise ValueError(f"a {self.law.value} tree {'has no' if self.draws is not None else 'needs'} draws")
        if (self.draws is None) != (self.draft_probs is None):
            raise ValueError("draws and draft_probs come together")
        if self.inputs is not None and (self.probe is None or not self.probe[self.inputs.rows].all()):
            raise ValueError("only probe nodes may read something else than their token")

    @classmethod
    def empty(cls) -> DraftTree:
        """No guess: the round is plain decoding."""
        return _EMPTY

    @classmethod
    def chain(cls, tokens: Sequence[int], draft_probs: Tensor | None = None) -> DraftTree:
        """A chain of guesses; with ``draft_probs`` (float64 [len(tokens), vocab]) a chain of draws."""
        if not len(tokens):
            return _EMPTY
        nodes = np.arange(len(tokens), dtype=np.int32)
        ids = np.asarray(tokens, dtype=np.int32)
        if draft_probs is None:
            return cls(ids, nodes - 1)
        return cls(ids, nodes - 1, TreeLaw.SAMPLED, Draws(nodes - 1, nodes, nodes), draft_probs)

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]], max_nodes: int) -> DraftTree:
        """Deterministic guesses merged in a prefix tree, earlier paths first, at most ``max_nodes`` nodes."""
        children: dict[tuple[int, int], int] = {}
        tokens: list[int] = []
        parents: list[int] = []
        for path in paths:
            node = ROOT
            for token in path:
                child = children.get((node, token))
                if child is None:
                    if len(tokens) >= max_nodes:
                        break
                    child = children[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = child
        return cls(np.asarray(tokens, dtype=np.int32), np.asarray(parents, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def token_list(self) -> list[int]:
        """``tokens`` as plain integers, which are read one at a time much faster."""
        tokens: list[int] = self.tokens.tolist()
        return tokens

    @cached_property
    def depths(self) -> NDArray[np.int32]:
        """[node] distance from the root, 1 for its children."""
        return np.array(path_lengths(self.parents.tolist()), dtype=np.int32)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """node (or ROOT) -> its children that may be verified, in node order."""
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents.tolist()):
            if self.probe is None or not self.probe[node]:
                children.setdefault(parent, []).append(node)
        return children

    @property
    def num_drafted(self) -> int:
        """Nodes that may be verified (probe nodes are not guesses)."""
        return len(self) if self.probe is None else len(self) - int(self.probe.sum())

    @property
    def is_chain(self) -> bool:
        """Every node has one child."""
        return bool((self.parents == np.arange(len(self)) - 1).all())

    def path_to(self, node: int) -> list[int]:
        """Nodes from the first level down to ``node``, itself included; empty for ROOT."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]

    def restricted_to(self, kept: NDArray[np.bool_]) -> DraftTree:
        """The tree of the nodes in ``kept`` [node], which holds the parent of each; draws that landed elsewhere go."""
        if kept.all():
            return self
        if not kept.any():
            return _EMPTY
        place = (np.cumsum(kept) - 1).astype(np.int32)
        draws = self.draws
        if draws is not None:
            of = kept[draws.nodes]
            draws = Draws(_renamed(draws.parents[of], place), place[draws.nodes[of]], draws.rows[of])
        return replace(
            self,
            tokens=self.tokens[kept],
            parents=_renamed(self.parents[kept], place),
            draws=draws,
            probe=None if self.probe is None else self.probe[kept],
            grades=None if self.grades is None else self.grades[kept],
            chances=None if self.chances is None else self.chances[kept],
            inputs=None if self.inputs is None else _restricted(self.inputs, kept, place),
        )

    def child_with(self, node: int, token: int) -> int | None:
        """The verifiable child of ``node`` that bears ``token``, if there is one."""
        for child in self.children.get(node, ()):
            if self.token_list[child] == token:
                return child
        return None


def _restricted(inputs: RowInputs, kept: NDArray[np.bool_], place: NDArray[np.int32]) -> RowInputs | None:
    left = kept[inputs.rows]
    return RowInputs(place[inputs.rows[left]], inputs.values[torch.from_numpy(left)]) if left.any() else None


def _renamed(parents: NDArray[np.int32], place: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.where(parents == ROOT, np.int32(ROOT), place[parents])


_EMPTY = DraftTree(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int32))
