"""The suffix automaton of the native library guesses what the one in Python guesses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from native_cases import isa_params
from toys import ToyBackend, hashed_logits, toy_engine, toy_sequence

from headstart.backends.native.kit import NativeKit
from headstart.backends.native.loader import load_library
from headstart.backends.native.suffix_text import NativeSuffixText
from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.suffix import drafter as suffix
from headstart.drafting.registry import create_drafter

VOCAB = 50


def random_text(rng: np.random.Generator, count: int) -> list[int]:
    """Tokens that repeat themselves: runs of few different ones, and copies of what came before."""
    tokens: list[int] = rng.integers(0, rng.integers(2, VOCAB), 8).tolist()
    while len(tokens) < count:
        if rng.integers(2):
            start = rng.integers(len(tokens))
            tokens += tokens[start : start + rng.integers(1, 20)]
        else:
            tokens += rng.integers(0, rng.integers(2, VOCAB), rng.integers(1, 6)).tolist()
    return tokens[:count]


def drafters(isa: str, **options: object) -> list[suffix.SuffixDrafter]:
    """The drafter with the native automaton, and with the one in Python."""
    library = load_library(isa)
    assert library is not None
    target: Any = SimpleNamespace(backend=SimpleNamespace(kit=NativeKit(library)))
    contexts = (DraftContext(VOCAB, target), DraftContext(VOCAB))
    return [create_drafter("suffix", context, **options) for context in contexts]  # type: ignore[misc]


@pytest.mark.parametrize("isa", isa_params())
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_depth": 3},
        {"max_depth": 6, "tree_nodes": 40, "min_probability": 0.01},
        {"factor": 0.5, "offset": 0.0},
        {"factor": 1.3, "offset": -2.0, "min_probability": 1.0},
    ],
    ids=repr,
)
def test_trees_are_those_of_the_automaton_in_python(options: dict[str, object], isa: str) -> None:
    rng = np.random.default_rng(3)
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB)))
    guessed = 0
    for case in range(12):
        native, python = drafters(isa, **options)
        text = random_text(rng, 150)
        prediction = tuple(random_text(rng, 30)) if case % 3 == 0 else ()
        sequence = toy_sequence(engine, text[:20])
        sequence.speculation = type(sequence.speculation)(prediction=prediction)
        native.begin(sequence)
        python.begin(sequence)
        assert isinstance(native.caught_up(sequence.id).text, NativeSuffixText)
        assert not isinstance(python.caught_up(sequence.id).text, NativeSuffixText)
        while len(sequence.tokens) < len(text):
            budget = DraftBudget(int(rng.integers(1, 40)), int(rng.integers(1, 40)))
            (one,), (other,) = (drafter.propose([sequence], [budget]) for drafter in (native, python))
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.parents.tolist() == other.parents.tolist()
            if len(one):
                assert one.grades is not None
                assert other.grades is not None
                assert one.grades.tolist() == other.grades.tolist()
            guessed += len(one)
            path = text[len(sequence.tokens) :][: rng.integers(0, 4)] + [VOCAB - 1] * int(rng.integers(0, 2))
            ones, others = (drafter.proceed(sequence, path, budget) for drafter in (native, python))
            assert (ones.tokens.tolist(), ones.parents.tolist()) == (others.tokens.tolist(), others.parents.tolist())
            assert not len(ones) or ones.grades.tolist() == others.grades.tolist()  # type: ignore[union-attr]
            list.extend(sequence.tokens, text[len(sequence.tokens) :][: rng.integers(1, 6)])
    assert guessed > 100


@pytest.mark.parametrize("isa", isa_params())
def test_what_others_wrote_is_guessed_from_alike(isa: str) -> None:
    rng = np.random.default_rng(5)
    engine = toy_engine(ToyBackend(VOCAB, hashed_logits(VOCAB)))
    pair = drafters(isa, shared_tokens=120, max_depth=12)
    guessed, ids = 0, iter(range(1000))
    for case in range(14):
        text = random_text(rng, 90)
        views = [toy_sequence(engine, text[:20], sequence_id=next(ids)) for _ in range(2)]
        for drafter in pair:
            for view in views:
                view.speculation = type(view.speculation)(prediction=tuple(text[40:60]) if case % 4 == 0 else ())
                drafter.begin(view)
        ending, staying = views
        while len(staying.tokens) < len(text):
            budget = DraftBudget(int(rng.integers(1, 40)), int(rng.integers(1, 40)))
            (one,), (other,) = (drafter.propose([staying], [budget]) for drafter in pair)
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.parents.tolist() == other.parents.tolist()
            path = text[len(staying.tokens) :][: rng.integers(1, 4)]
            ones, others = (drafter.proceed(staying, path, budget) for drafter in pair)
            assert (ones.tokens.tolist(), ones.parents.tolist()) == (others.tokens.tolist(), others.parents.tolist())
            guessed += len(one)
            list.extend(staying.tokens, text[len(staying.tokens) :][: rng.integers(1, 6)])
            if len(ending.tokens) < 60 < len(staying.tokens):
                # Another request ends, and a further one brings its text into the index that this one reads.
                list.extend(ending.tokens, random_text(rng, 50))
                more = toy_sequence(engine, [1], sequence_id=next(ids))
                for drafter in pair:
                    drafter.end(ending.id)
                    drafter.begin(more)
                    drafter.end(more.id)
        for drafter in pair:
            drafter.end(staying.id)
    assert guessed > 100
