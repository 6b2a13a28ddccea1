"""Rules of a request, of its model and of a language that meet, and leave one token, or none: speculation says what
plain decoding says, up to the same end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from toys import LogitsOf, ToyBackend, hashed_logits, toy_engine, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, SpeculationParams, TargetSignals
from headstart.engine.beams import BeamGroup
from headstart.engine.constraint import TokenConstraint
from headstart.engine.engine import Engine
from headstart.engine.output_rules import OutputRules
from headstart.engine.outputs import FinishReason
from headstart.engine.sequence import Sequence as EngineSequence
from headstart.errors import RequestError
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams

VOCAB, END, LENGTH = 8, 5, 12
LOGITS = hashed_logits(VOCAB, 3, order=2, scale=1.5)
DRAFTERS = ["random", "recycling", "suffix", "auto"]


class Foreseeing:
    """Guesses what plain decoding has said, and what it may say after the end of that."""

    needs = TargetSignals()

    def __init__(self, said: Sequence[int]) -> None:
        self._said = [*said, 3, 1, 4]

    def begin(self, sequence: SequenceView) -> None: ...

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        return [
            DraftTree.chain(self._said[len(sequence.tokens) - sequence.prompt_length :][: min(budget.depth, 5)])
            if budget.nodes
            else DraftTree.empty()
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def end(self, sequence_id: int) -> None: ...


class DeadEnd:
    """A language in which nothing may follow after so many tokens, or that becomes too complex there."""

    def __init__(self, length: int, complex_there: bool) -> None:
        self.length, self.complex_there, self.said = length, complex_there, 0

    def mask(self, path: Sequence[int]) -> np.ndarray:
        there = self.said + len(path) >= self.length
        if there and self.complex_there:
            raise RequestError("too complex.")
        return np.full(VOCAB, not there)

    def allowed(self, path: Sequence[int]) -> int:
        if self.complex_there and self.said + len(path) >= self.length:
            raise RequestError("too complex.")
        return len(path)

    def advance(self, token: int) -> None:
        self.said += 1


@dataclass
class Case:
    """What meets."""

    params: dict[str, object]
    constraint: Callable[[Callable[[], int]], TokenConstraint] | None = None
    logits_of: LogitsOf = LOGITS


def forced(
    last: int | None = END, first: int | None = None, never_first: Sequence[int] = ()
) -> Callable[[Callable[[], int]], TokenConstraint]:
    return lambda length: OutputRules(VOCAB, never_first, last, length, None, first)


def no_number_after_seven(context: tuple[int, ...]) -> np.ndarray:
    return np.full(VOCAB, np.nan) if len(context) > 10 else LOGITS(context)


CASES = {
    "end forced, and too early": Case({"min_tokens": LENGTH}, forced()),
    "end forced, and banned": Case({"banned_token_ids": (END,)}, forced()),
    "end forced, and not allowed": Case({"allowed_token_ids": (1, 2, 3)}, forced()),
    "end forced, and no run of it": Case({"banned_sequences": ((END,),)}, forced()),
    "end forced where one token is said": Case({"max_tokens": 1, "min_tokens": 1}, forced()),
    "end forced, first token suppressed": Case({"max_tokens": 1}, forced(never_first=[END])),
    "beginning forced, and suppressed": Case({"banned_token_ids": (2,)}, forced(first=2, never_first=[2])),
    "both forced": Case({"max_tokens": 1}, forced(first=2)),
    "all suppressed at first": Case({}, forced(None, never_first=range(VOCAB))),
    "all banned": Case({"banned_token_ids": tuple(range(VOCAB))}),
    "no pair twice": Case({"no_repeat_ngram_size": 1, "max_tokens": 40, "ignore_eos": True}),
    "a dead end": Case({}, lambda length: DeadEnd(7, False)),
    "a language too complex": Case({}, lambda length: DeadEnd(7, True)),
    "no number": Case({"ignore_eos": True}, None, no_number_after_seven),
}


def said(case: Case, drafter: object, temperature: float, wishes: SpeculationParams, beams: int | None = None) -> tuple:
    engine = toy_engine(ToyBackend(VOCAB, case.logits_of, eos=(END,)), drafter)  # type: ignore[arg-type]
    wanted = {"temperature": temperature, "seed": 5, "max_tokens": LENGTH, **case.params}
    if beams is not None:
        wanted |= {"temperature": 0, "beam_width": beams}
    params = SamplingParams(**wanted)  # type: ignore[arg-type]
    sequence = toy_sequence(engine, [1, 2, 1, 2], params=params, speculation=wishes)
    if case.constraint is not None:
        sequence.constraint = case.constraint(lambda: sequence.stops.max_tokens)
    if beams is not None:
        BeamGroup([sequence])
    decode(engine, sequence)
    return sequence.output, sequence.finish_reason, sequence.error


def decode(engine: Engine, sequence: EngineSequence) -> None:
    engine.add(sequence)
    while not engine.idle:
        engine.step()
        engine.check()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_speculation_says_what_plain_decoding_says(name: str, temperature: float) -> None:
    case = CASES[name]
    plain = said(case, "none", temperature, SpeculationParams())
    coupled = SpeculationParams(verify=VerifyRule.COUPLED)
    for drafter in (*DRAFTERS, Foreseeing(plain[0])):
        assert said(case, drafter, temperature, coupled) == plain, drafter
    if "forced" in name:
        assert plain[1] is not FinishReason.ERROR


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rule", [VerifyRule.BLOCK, VerifyRule.REJECTION])
def test_drawn_guesses_end_where_and_as_plain_decoding_ends(name: str, rule: VerifyRule) -> None:
    """Other rules draw other tokens; where an end does not depend on them, it is the same."""
    case = CASES[name]
    plain = said(case, "none", 1.0, SpeculationParams())
    guessed = said(case, "random", 1.0, SpeculationParams(verify=rule))
    drawn = any(output[-1:] == [END] and len(output) < LENGTH for output in (plain[0], guessed[0]))
    assert drawn or (len(guessed[0]), *guessed[1:]) == (len(plain[0]), *plain[1:])


@pytest.mark.parametrize("name", CASES)
def test_searches_end_as_without_guesses(name: str) -> None:
    plain = said(CASES[name], "none", 0.0, SpeculationParams(), beams=3)
    for drafter in ("recycling", "random"):
        assert said(CASES[name], drafter, 0.0, SpeculationParams(), beams=3) == plain


def test_a_dead_end_after_guesses_leaves_the_law_of_what_comes_before_it() -> None:
    """A draw is never dropped for what would follow it, which here is nothing after a 0."""
    logits, seeds = np.array([1.0, 0.5, 0.0, -0.5]), 250
    engine = toy_engine(ToyBackend(4, lambda context: logits), "random")
    firsts = []
    for seed in range(seeds):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=2)
        wishes = SpeculationParams(verify=VerifyRule.BLOCK)
        sequence = toy_sequence(engine, [0, 1], params=params, speculation=wishes)
        sequence.constraint = AfterZero()
        decode(engine, sequence)
        firsts.append(sequence.output[0])
        assert len(sequence.output) == (1 if firsts[-1] == 0 else 2)
    law = np.exp(logits) / np.exp(logits).sum()
    assert np.bincount(firsts, minlength=4) / seeds == pytest.approx(law, abs=0.08)


class AfterZero:
    def __init__(self) -> None:
        self.dead = False

    def mask(self, path: Sequence[int]) -> np.ndarray:
        return np.full(4, not (self.dead or 0 in path))

    def allowed(self, path: Sequence[int]) -> int:
        return len(path)

    def advance(self, token: int) -> None:
        self.dead = token == 0
