"""Typical acceptance: a named, lossy opt-in that keeps every guess which the target finds plausible."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.verification.base import NodeLaws, Verdict
from headstart.verification.coupled import walk


def verify_typical(tree: DraftTree, laws: NodeLaws, epsilon: float) -> Verdict:
    """The longest path of plausible guesses, then a token of the target's own law; of equally long ones the likeliest.

    Lossy: no draw decides whether a guess stays. It is plausible where p(x) > min(epsilon, sqrt(epsilon) exp(-H(p))),
    p the target's law after the request's transforms and H(p) its entropy in nats, so that more passes where the
    target is unsure (Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.3.1, with delta = sqrt(epsilon) as in its
    experiments). Greedy requests have one plausible token each, the argmax: they stay exact, as the paper notes.

    Raises:
        ConfigError: epsilon outside (0, 1).
    """
    if not 0 < epsilon < 1:
        raise ConfigError(f"typical is {epsilon}; it must lie in (0, 1).")
    if laws.greedy:
        return walk(tree, laws)
    plausible: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
    """node -> depth, and log-probability of the path to it."""
    known: dict[int, tuple[Tensor, float]] = {}
    for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)):
        if parent not in plausible or node not in tree.children.get(parent, ()):
            continue
        if parent not in known:
            law = laws.probs(parent)
            known[parent] = law, _threshold(law, epsilon)
        law, threshold = known[parent]
        probability = float(law[token])
        if probability > threshold:
            depth, likelihood = plausible[parent]
            plausible[node] = depth + 1, likelihood + math.log(probability)
    end = max(plausible, key=lambda node: plausible[node])
    return Verdict(tuple(tree.path_to(end)), laws.sample(end))


def _threshold(law: Tensor, epsilon: float) -> float:
    entropy = float(torch.special.entr(law).sum())
    return min(epsilon, math.sqrt(epsilon) * math.exp(-entropy))
