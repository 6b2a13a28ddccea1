"""Paths that are drawn from the laws that a head has for each depth, for rules that check draws.

The law of a path is the product of its depths' laws, each of them known before anything is drawn, so a chain is
verified as any chain of draws and several chains as any tree of draws (docs/exactness.md 1 to 4): nodes are merged,
draws stay.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SequenceView
from headstart.errors import RequestError
from headstart.passes.draft_tree import ROOT, DraftTree, Draws, TreeLaw
from headstart.sampling.noise import SequenceNoise, Stream
from headstart.sampling.params import SamplingParams
from headstart.sampling.transforms import Transforms

LawAfter = Callable[[tuple[int, ...]], Tensor]
"""Tokens of a path -> the law of the next one, float64 [vocab]: at one depth a fixed one, or one that the last token
of the path tells."""


def may_draw(sequence: SequenceView) -> bool:
    """Whether guesses for a sequence may be draws: it samples, by a rule that checks them."""
    speculation = sequence.speculation
    return not sequence.params.greedy and speculation.lossy is None and speculation.verify is not VerifyRule.COUPLED


def law_of(row: Tensor, ids: Tensor, params: SamplingParams, vocab_size: int) -> Tensor:
    """A head's logits [column] as a law over the target's tokens, float64 [vocab], after the request's temperature and
    truncation; its penalties, biases and grammars are not applied, which costs acceptance alone.

    Args:
        ids: int64 [column] what token each column stands for; from ``vocab_size`` on: padding.
    """
    kept = (ids < vocab_size) & (row > -torch.inf)
    logits = torch.full((vocab_size,), -torch.inf)
    logits[ids[kept]] = row[kept].float()
    own = SamplingParams(temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p)
    try:
        return Transforms(own, vocab_size, ()).law(logits, None)
    except RequestError:
        # Where logits give no law any guess is as good as another; to give up could depend on what was drawn above.
        return torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64)


def drawn_tree(noise: SequenceNoise, root_position: int, law_after: LawAfter, paths: int, depth: int) -> DraftTree:
    """``paths`` chains of ``depth`` draws, in one prefix tree; both are settled before the first draw."""
    tokens: list[int] = []
    parents: list[int] = []
    children: dict[tuple[int, int], int] = {}
    draws: list[tuple[int, int, int]] = []
    laws: list[Tensor] = []
    rows: dict[int, int] = {}
    """[id of a law] its row: depths whose law does not depend on the path share one."""
    for number in range(paths):
        node = ROOT
        path: tuple[int, ...] = ()
        for level in range(depth):
            law = law_after(path)
            row = rows.setdefault(id(law), len(laws))
            if row == len(laws):
                laws.append(law)
            token = noise.draw(Stream.DRAFT, root_position, number * depth + level, law)
            child = children.setdefault((node, token), len(tokens))
            if child == len(tokens):
                tokens.append(token)
                parents.append(node)
            draws.append((node, child, row))
            node, path = child, (*path, token)
    if not draws:
        return DraftTree.empty()
    drawn_from, landed_on, of_rows = np.asarray(draws, dtype=np.int32).T
    return DraftTree(
        np.asarray(tokens, dtype=np.int32),
        np.asarray(parents, dtype=np.int32),
        TreeLaw.SAMPLED,
        Draws(drawn_from, landed_on, of_rows),
        torch.stack(laws),
    )


def laws_along(law_at: Callable[[int, int], Tensor], root: int, chained: bool) -> LawAfter:
    """Laws that depend on the depth (0: the first) and, if they are ``chained``, on the token before, each made once;
    ``root``: the token before the first."""
    known: dict[tuple[int, int], Tensor] = {}

    def law_after(path: tuple[int, ...]) -> Tensor:
        place = len(path), path[-1] if path and chained else root
        if place not in known:
            known[place] = law_at(*place)
        return known[place]

    return law_after


def fitting_paths(wanted: int, depth: int, nodes: int) -> tuple[int, int]:
    """Paths and their depth within a budget of nodes, whatever is drawn: as many paths as leave each a token."""
    paths = min(wanted, nodes)
    return paths, min(depth, nodes // paths) if paths else 0
