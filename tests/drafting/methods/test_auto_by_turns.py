"""Answers that are easy and hard to guess by turns: what ``auto`` gains on these and loses on those, in simulated time
(docs/experiments/planner.md, 0149)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from drafting_toys import ToySequence, verify_greedily
from planned_toys import BUDGET, PREDICTABLE, Oracle, begin, with_oracles

from headstart.drafting.base import DraftBudget, Drafter, SequenceView
from headstart.passes.draft_tree import DraftTree


@dataclass
class Guessing(Oracle):
    """Each of its guesses holds, where those before it do, with a chance that depends on the answer."""

    chance: float = 0.0

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        self.clock.now += self.price
        trees = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            context = list(sequence.tokens)
            for _ in range(min(self.length, budget.nodes)):
                drawn = hashlib.blake2b(f"{sequence.id} {len(context)}".encode(), digest_size=4).digest()
                holds = int.from_bytes(drawn, "big") < self.chance * 2**32
                context.append(int(self.target(context)[0 if holds else 1]))
            trees.append(DraftTree.chain(context[len(sequence.tokens) :]))
        return trees


def answer(drafter: Drafter, sequence: ToySequence, row: float) -> tuple[float, int]:
    """Seconds of its passes, and how many tokens were said."""
    before, passes = len(sequence.tokens), 0.0
    while len(sequence.tokens) < before + 64:
        (tree,) = drafter.propose([sequence], [BUDGET])
        seconds = 1.0 + row * len(tree)
        outcome = verify_greedily(sequence, tree, PREDICTABLE, 0)
        drafter.observe([replace(outcome, pass_rows=1 + len(tree), pass_seconds=seconds)])
        passes += seconds
    drafter.end(sequence.id)
    return passes, len(sequence.tokens) - before


def test_eight_easy_answers_and_eight_hard_ones_by_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question takes a quarter of a pass, a row a little more."""
    drafter, oracles = with_oracles(monkeypatch, Guessing, only=(4, 0.25))
    guessing = oracles["only"]
    assert isinstance(guessing, Guessing)
    taken, plain = dict.fromkeys((0.75, 0.1), 0.0), dict.fromkeys((0.75, 0.1), 0.0)
    for number in range(48):
        guessing.chance = chance = 0.1 if number // 8 % 2 else 0.75
        sequence, began = begin(drafter, number), guessing.clock.now
        passes, said = answer(drafter, sequence, row=0.3)
        taken[chance] += passes + guessing.clock.now - began
        plain[chance] += said
    assert plain[0.75] > 1.25 * taken[0.75]
    assert taken[0.1] - plain[0.1] < 0.055 * taken[0.1]
