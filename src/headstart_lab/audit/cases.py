"""Toy targets and drafters for the oracle: small enough to enumerate, odd enough to catch a wrong rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from headstart.common.enumerations import VerifyRule
from headstart.passes.draft_tree import ROOT, DraftTree, Draws, TreeLaw
from headstart.sampling.noise import SequenceNoise, Stream
from headstart_lab.audit.oracle import Model, Propose, Tokens


def random_model(vocab_size: int, seed: int, *, zeros: int = 0) -> Model:
    """A law drawn for every prefix, with ``zeros`` tokens forbidden in each (others each time)."""

    @cache
    def model(tokens: Tokens) -> Tensor:
        generator = np.random.default_rng([seed, len(tokens), *tokens])
        law = generator.dirichlet(np.ones(vocab_size))
        law[generator.permutation(vocab_size)[:zeros]] = 0
        return torch.from_numpy(law / law.sum())

    return model


def constant_model(*weights: float) -> Model:
    """The same law everywhere."""
    law = torch.tensor(weights, dtype=torch.float64)
    law /= law.sum()
    return lambda tokens: law


def one_hot_model(vocab_size: int, seed: int) -> Model:
    """All mass on one token, another one for every prefix."""

    @cache
    def model(tokens: Tokens) -> Tensor:
        law = torch.zeros(vocab_size, dtype=torch.float64)
        law[int(np.random.default_rng([seed, len(tokens), *tokens]).integers(vocab_size))] = 1
        return law

    return model


def draft_chain(draft: Model, depth: int, stop: Callable[[Tokens], bool] | None = None) -> Propose:
    """``depth`` draws in a row; fewer where ``stop`` says so of the path up to the draw just made, which is kept."""

    def propose(noise: SequenceNoise, root_position: int, tokens: Tokens) -> DraftTree:
        path: Tokens = ()
        rows = []
        while len(path) < depth and not (path and stop and stop(path)):
            rows.append(draft(tokens + path))
            path += (noise.draw(Stream.DRAFT, root_position, len(path), rows[-1]),)
        return DraftTree.chain(path, torch.stack(rows) if rows else None)

    return propose


def draft_chains(drafts: Sequence[Model], depth: int) -> Propose:
    """One chain of draws from each model, merged in a prefix tree (multi-draft)."""

    def propose(noise: SequenceNoise, root_position: int, tokens: Tokens) -> DraftTree:
        tree = _Growing()
        for draft in drafts:
            node, path = ROOT, tokens
            for _ in range(depth):
                row = tree.add_row(draft(path))
                token = noise.draw(Stream.DRAFT, root_position, row, tree.rows[row])
                node = tree.add_draw(node, token, row)
                path += (token,)
        return tree.finish(TreeLaw.SAMPLED)

    return propose


def draft_tree(draft: Model, widths: Sequence[int], *, replaced: bool = True, extras: Sequence[int] = ()) -> Propose:
    """``widths[d]`` draws at every node of depth d, with or without replacement, and token guesses beside them.

    ``extras`` are added as point masses under the root and under each of its children.
    """

    def propose(noise: SequenceNoise, root_position: int, tokens: Tokens) -> DraftTree:
        tree = _Growing()
        level = {ROOT: tokens}
        for width in widths:
            below: dict[int, Tokens] = {}
            for node, path in level.items():
                row = tree.add_row(draft(path))
                if replaced:
                    rows = [row, *(tree.add_row(tree.rows[row]) for _ in range(width - 1))]
                    drawn = [noise.draw(Stream.DRAFT, root_position, each, tree.rows[each]) for each in rows]
                else:
                    drawn = noise.draw_distinct(Stream.DRAFT, root_position, row, tree.rows[row], width)
                    rows = [row] * len(drawn)
                for token, each in zip(drawn, rows, strict=True):
                    below[tree.add_draw(node, token, each)] = (*path, token)
            level = below
        for node in (ROOT, *(node for node, parent in enumerate(list(tree.parents)) if parent == ROOT)):
            for token in extras:
                tree.child(node, token)
        return tree.finish(TreeLaw.SAMPLED if replaced else TreeLaw.WITHOUT_REPLACEMENT)

    return propose


def draft_guesses(*paths: Tokens) -> Propose:
    """Point masses: the same paths every time."""
    return lambda noise, root_position, tokens: DraftTree.from_paths(paths, max_nodes=64)


class _Growing:
    """A sampled tree under construction: draws that repeat a token under one parent share its node."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.rows: list[Tensor] = []
        self._tokens: list[int] = []
        self._children: dict[tuple[int, int], int] = {}
        self._draws: list[tuple[int, int, int]] = []

    def add_row(self, law: Tensor) -> int:
        self.rows.append(law)
        return len(self.rows) - 1

    def child(self, parent: int, token: int) -> int:
        node = self._children.setdefault((parent, token), len(self._tokens))
        if node == len(self._tokens):
            self._tokens.append(token)
            self.parents.append(parent)
        return node

    def add_draw(self, parent: int, token: int, row: int) -> int:
        node = self.child(parent, token)
        self._draws.append((parent, node, row))
        return node

    def finish(self, law: TreeLaw) -> DraftTree:
        parents, nodes, rows = np.asarray(self._draws, dtype=np.int32).T
        return DraftTree(
            np.asarray(self._tokens, dtype=np.int32),
            np.asarray(self.parents, dtype=np.int32),
            law,
            Draws(parents, nodes, rows),
            torch.stack(self.rows),
        )


@dataclass(frozen=True)
class Case:
    """A target, a drafter, and the rules that must reproduce the target's law."""

    name: str
    target: Model
    propose: Propose
    rules: tuple[VerifyRule, ...]
    length: int
    """Tokens to compare: one more than the deepest path."""


def cases() -> Iterator[Case]:
    """Everything the exact rules are enumerated on: chains, trees, both kinds of draws, point masses, mixtures."""
    chain_rules = (VerifyRule.REJECTION, VerifyRule.BLOCK, VerifyRule.COUPLED)
    tree_rules = (VerifyRule.REJECTION, VerifyRule.BLOCK)
    for name, target, draft in model_pairs():
        for depth in (1, 2, 3):
            yield Case(f"chain of {depth}, {name}", target, draft_chain(draft, depth), chain_rules, depth + 1)
        yield Case(f"three draws, {name}", target, draft_tree(draft, [3]), tree_rules, 2)
        yield Case(f"two distinct draws, {name}", target, draft_tree(draft, [2], replaced=False), tree_rules, 2)
        yield Case(
            f"as many distinct draws as tokens, {name}", target, draft_tree(draft, [4], replaced=False), tree_rules, 2
        )
    target, draft, other = random_model(3, 1), random_model(3, 2), random_model(3, 3, zeros=1)
    stops_at_token = draft_chain(draft, 3, stop=lambda path: path[-1] == 0)
    yield Case("chain that stops at a token", target, stops_at_token, chain_rules, 4)
    yield Case("two chains of two models", target, draft_chains([draft, other], 2), tree_rules, 3)
    yield Case("three chains of one model", target, draft_chains([draft] * 3, 2), tree_rules, 3)
    yield Case("two draws at each of three nodes", target, draft_tree(draft, [2, 2]), tree_rules, 3)
    yield Case("distinct draws on two levels", target, draft_tree(draft, [2, 2], replaced=False), tree_rules, 3)
    yield Case("single draws among guesses", target, draft_tree(draft, [1, 1], extras=[0]), chain_rules, 3)
    yield Case("draws and guesses", target, draft_tree(draft, [2, 1], extras=[0, 2]), tree_rules, 3)
    yield Case(
        "exhausted draws and guesses", target, draft_tree(other, [3], replaced=False, extras=[0, 1, 2]), tree_rules, 3
    )
    guesses = draft_guesses((0, 1, 2), (0, 0), (2,))
    yield Case("guesses", target, guesses, (VerifyRule.AUTO, VerifyRule.BLOCK), 4)
    yield Case("no guess", target, draft_guesses(), (VerifyRule.AUTO,), 2)


def model_pairs() -> Iterator[tuple[str, Model, Model]]:
    """Targets and draft models with the relations that rules stumble over."""
    yield "unrelated", random_model(3, 11), random_model(3, 12)
    yield "four tokens", random_model(4, 13), random_model(4, 14)
    yield "equal", random_model(3, 15), random_model(3, 15)
    yield "zeros in the target", random_model(3, 16, zeros=1), random_model(3, 17)
    yield "zeros in the draft", random_model(3, 18), random_model(3, 19, zeros=1)
    yield "zeros in both", random_model(4, 20, zeros=2), random_model(4, 21, zeros=2)
    yield "disjoint", constant_model(0, 0, 0.3, 0.7), constant_model(0.6, 0.4, 0, 0)
    yield "one-hot target", one_hot_model(3, 22), random_model(3, 23)
    yield "one-hot draft", random_model(3, 24), one_hot_model(3, 25)
    yield "ties", constant_model(1, 1, 1), constant_model(1, 1, 2)
