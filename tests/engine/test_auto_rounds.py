"""The planner in real rounds: its trees depend on clocks, what is said does not."""

from __future__ import annotations

import pytest
from toys import ToyBackend, hashed_logits, repeating_logits, run_all, toy_engine, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import SpeculationParams
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_trials import TriedPass
from headstart.engine.beams import BeamGroup
from headstart.engine.schedule import Limits
from headstart.sampling.params import SamplingParams

VOCAB = 12
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], list(range(10)) * 3]
MEMBERS = {"drafters": "suffix+recycling+bigram", "drafter_options": {"bigram": {"sample": True}}}


def said(
    drafter: str, logits_of, temperature: float, rule: VerifyRule, **options: object
) -> tuple[list[list[int]], int]:
    engine = toy_engine(ToyBackend(VOCAB, logits_of), drafter, **options)
    params = SamplingParams(temperature=temperature, max_tokens=40, seed=11)
    sequences = [
        toy_sequence(engine, prompt, sequence_id=i, params=params, speculation=SpeculationParams(verify=rule))
        for i, prompt in enumerate(PROMPTS)
    ]
    return run_all(engine, sequences), sum(sequence.stats.drafted for sequence in sequences)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("rule", [VerifyRule.AUTO, VerifyRule.REJECTION])
@pytest.mark.parametrize(
    "logits_of", [hashed_logits(VOCAB, order=1), repeating_logits(VOCAB, range(7))], ids=["hashed", "repeating"]
)
def test_every_token_is_plain_decodings_greedy_or_sampled(
    logits_of, temperature: float, rule: VerifyRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A toy's rows cost so much that nothing would be guessed, were that known from the beginning.
    monkeypatch.setattr(AutoDrafter, "parts", PlannerParts(trials=lambda runner: ()))
    plain, _ = said("none", logits_of, temperature, rule)
    guessed, drafted = said("auto", logits_of, temperature, rule, **MEMBERS)
    assert guessed == plain
    assert drafted > 0


def test_outcomes_tell_the_rows_and_the_time_of_the_whole_pass() -> None:
    heard = []
    engine = toy_engine(ToyBackend(VOCAB, repeating_logits(VOCAB, range(7))), "suffix")
    observe = engine.drafter.observe

    def listen(outcomes) -> None:
        heard.append(outcomes)
        observe(outcomes)

    engine.drafter.observe = listen
    run_all(engine, [toy_sequence(engine, prompt, sequence_id=i) for i, prompt in enumerate(PROMPTS)])
    assert len(heard) > 1
    for outcomes in heard:
        assert {outcome.pass_rows for outcome in outcomes} == {sum(len(each.row_tokens) for each in outcomes)}
        assert all(outcome.pass_seconds > 0 for outcome in outcomes)
        assert all((outcome.ahead_seconds > 0) == bool(outcome.committed) for outcome in outcomes)


@pytest.mark.parametrize("beams", [None, 3])
def test_any_number_of_sequences_decodes_where_trial_passes_were_cut_short(
    beams: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, or with a large model: the largest pass that was timed has six rows."""
    trials = [TriedPass(rows, 0.3) for rows in (1, 2, 4, 6)]
    monkeypatch.setattr(AutoDrafter, "parts", PlannerParts(trials=lambda runner: trials))
    logits_of = hashed_logits(VOCAB, order=2)
    for count in range(1, 41, 6 if beams is None else 19):
        outputs = []
        for drafter in ("none", "auto"):
            engine = toy_engine(ToyBackend(VOCAB, logits_of), drafter, limits=Limits(max_sequences=64))
            params = SamplingParams(temperature=0, max_tokens=5, beam_width=beams)
            sequences = [toy_sequence(engine, [i % VOCAB, 3], sequence_id=i, params=params) for i in range(count)]
            if beams is not None:
                for sequence in sequences:
                    BeamGroup([sequence])
            outputs.append(run_all(engine, sequences))
        assert outputs[0] == outputs[1]
