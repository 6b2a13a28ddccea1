"""The window as a tree of probe rows, what a pass says of it, and the pool."""

from __future__ import annotations

import numpy as np
import pytest
from drafting_toys import ToySequence, second_order_target, verify_greedily
from toys import ToyBackend, hashed_logits, repeating_logits, run_all, toy_engine, toy_sequence

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.lookahead.drafter import LookaheadDrafter, LookaheadOptions

VOCAB = 12
TARGET = second_order_target(VOCAB)
BUDGET = DraftBudget(nodes=40, depth=20)


def begin(prompt: list[int], **options: object) -> tuple[LookaheadDrafter, ToySequence]:
    drafter = LookaheadDrafter(DraftContext(VOCAB), LookaheadOptions(**options))  # type: ignore[arg-type]
    sequence = ToySequence(1, prompt)
    drafter.begin(sequence)
    return drafter, sequence


def test_every_window_row_sees_its_column_and_the_first_level_up_to_it() -> None:
    """After three rounds the window is full, and each pass's argmaxes are the next level."""
    drafter, sequence = begin([1, 2, 3, 4, 5, 6], ngram=4, width=3, from_prompt=False)
    for filled in (1, 2, 3, 3, 3):
        levels = [list(level) for level in drafter._windows[1].levels]
        assert list(map(len, levels)) == [2, 3, 3][:filled]
        before = list(sequence.tokens)
        tree = drafter.propose([sequence], [BUDGET])[0]
        for column in range(3):
            for level in range(filled):
                node = drafter._windows[1].nodes[level][column]
                path = [int(tree.tokens[n]) for n in tree.path_to(node)]
                assert path == levels[0][:column] + [levels[above][column] for above in range(1, level + 1)]
        contexts = [
            before + levels[0][:column] + [levels[above][column] for above in range(1, filled)] for column in range(3)
        ]
        drafter.observe([verify_greedily(sequence, tree, TARGET, 1)])
        said = [int(TARGET(context)[0]) for context in contexts]
        now = drafter._windows[1].levels
        if filled < 3:
            assert now == [*levels, said]
        else:
            assert now == [levels[1][1:], levels[2], said]
            for column in range(3):
                first = before[-1] if column == 0 else levels[0][column - 1]
                assert (levels[1][column], levels[2][column], said[column]) in drafter._windows[1].pool[first]


def test_guesses_are_what_followed_the_roots_token_the_latest_first() -> None:
    drafter, sequence = begin([7, 1, 2, 7, 3, 4, 7], ngram=3, width=1)
    tree = drafter.propose([sequence], [DraftBudget(3, 9)])[0]
    verified = [node for node in range(len(tree)) if tree.probe is None or not tree.probe[node]]
    assert [int(tree.tokens[node]) for node in verified] == [3, 4, 1]
    assert tree.parents[verified].tolist() == [ROOT, 0, ROOT]


def test_a_window_that_does_not_fit_stays_behind() -> None:
    drafter, sequence = begin([1, 2, 3, 1], ngram=3, width=5)
    for budget in (DraftBudget(3, 20), DraftBudget(40, 2)):
        tree = drafter.propose([sequence], [budget])[0]
        assert tree.probe is None
        assert tree.tokens.tolist() == [2, 3]
    levels = [list(level) for level in drafter._windows[1].levels]
    drafter.observe([verify_greedily(sequence, tree, TARGET, 1)])
    assert drafter._windows[1].levels == levels


def test_the_pool_keeps_the_latest() -> None:
    drafter, _ = begin([1, 2, 1, 3, 1, 4, 1, 2], ngram=2, width=1, guesses=2)
    assert list(drafter._windows[1].pool[1]) == [(4,), (2,)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_is_that_of_plain_decoding(temperature: float) -> None:
    backend = ToyBackend(VOCAB, hashed_logits(VOCAB, order=2))
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=3)
    texts = []
    for name in ("none", "lookahead"):
        engine = toy_engine(backend, name)
        texts.append(run_all(engine, [toy_sequence(engine, [1, 2, 3], params=params)]))
    assert texts[0] == texts[1]


def test_it_finds_what_the_prompt_does_not_hold() -> None:
    """The window goes on from other places of the text, which the sequence then comes to."""
    period = np.random.default_rng(1).permutation(40).tolist()
    engine = toy_engine(ToyBackend(40, repeating_logits(40, period)), "lookahead", from_prompt=False)
    prompt = [period[30], period[20], period[10], period[5], period[0]]
    sequence = toy_sequence(engine, prompt, params=SamplingParams(temperature=0, max_tokens=38))
    run_all(engine, [sequence])
    assert sequence.output == period[1:39]
    assert sequence.stats.accepted > 3


@pytest.mark.parametrize("options", [{"ngram": 1}, {"width": 0}, {"guesses": 0}])
def test_senseless_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="or more"):
        LookaheadOptions(**options)
