from __future__ import annotations

import pytest
from drafting_toys import ToySequence
from tiny_checkpoint import write_tiny_model

from headstart import LLM, SamplingParams
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.registry import create_drafter
from headstart.errors import ConfigError
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.structured import StructuredOutputsParams
from headstart_lab.methods.synthetic.drafter import SyntheticDrafter, SyntheticOptions

VOCAB = 50
BUDGET = DraftBudget(nodes=8, depth=8)


def answered(drafter: SyntheticDrafter, output: list[int], **fields: object) -> None:
    """A sequence came and went."""
    sequence = ToySequence(1, [1, 2, 3], **fields)
    drafter.begin(sequence)
    assert len(drafter.propose([sequence], [BUDGET])[0]) == 0
    sequence.tokens += output
    drafter.end(1)


def guesses(drafter: SyntheticDrafter, said: list[int], **fields: object) -> list[int]:
    sequence = ToySequence(2, [1, 2, 3], **fields)
    drafter.begin(sequence)
    sequence.tokens += said
    tree = drafter.propose([sequence], [BUDGET])[0]
    drafter.end(2)
    return tree.tokens.tolist()


def test_rates_are_unconditional_as_vllms():
    assert SyntheticOptions("0.8, 0.6,0.3").chances == pytest.approx((0.8, 0.75, 0.5))
    assert SyntheticOptions(0.5).chances == SyntheticOptions([0.5]).chances == (0.5,)
    assert SyntheticOptions([0.5, 0, 0]).chances == (0.5, 0, 0)


@pytest.mark.parametrize("rates", ["", "a", "1.5", "0.5,0.6", "-0.1", [], ["x"], "0.8,nan"])
def test_rates_that_are_none_are_refused(rates):
    with pytest.raises(ConfigError, match="rates is"):
        SyntheticOptions(rates)


def test_rates_must_be_given():
    with pytest.raises(ConfigError, match=r"give rates=0\.8,0\.6"):
        create_drafter("synthetic", DraftContext(VOCAB))


def test_a_first_answer_is_recorded_and_the_next_one_guessed_from_it():
    drafter = SyntheticDrafter(DraftContext(VOCAB), SyntheticOptions([1, 1, 0]))
    answered(drafter, [10, 11, 12, 13])
    assert guesses(drafter, []) == [10, 11, 13]
    assert guesses(drafter, [10, 11]) == [12, 13]
    assert guesses(drafter, [10, 11, 12, 13]) == []
    assert guesses(drafter, [10, 40]) == []


def test_draws_of_other_seeds_are_other_answers():
    drafter = SyntheticDrafter(DraftContext(VOCAB), SyntheticOptions(1))
    hot = SamplingParams(temperature=1)
    answered(drafter, [10, 11], params=hot, noise=SequenceNoise(5))
    assert guesses(drafter, [], params=hot, noise=SequenceNoise(5)) == [10]
    assert guesses(drafter, [], params=hot, noise=SequenceNoise(6)) == []
    assert guesses(drafter, []) == []


OTHER_LAWS = [
    {"repetition_penalty": 1.5},
    {"presence_penalty": 0.5},
    {"logit_bias": {10: -5.0}},
    {"allowed_token_ids": (10, 11)},
    {"bad_words": ("x",)},
    {"min_tokens": 3},
    {"structured_outputs": StructuredOutputsParams(regex="a+")},
]


@pytest.mark.parametrize("other", OTHER_LAWS, ids=lambda other: next(iter(other)))
def test_requests_of_other_laws_have_answers_of_their_own(other):
    drafter = SyntheticDrafter(DraftContext(VOCAB), SyntheticOptions([1, 1]))
    plain, changed = SamplingParams(temperature=0), SamplingParams(temperature=0, **other)
    answered(drafter, [10, 11], params=plain)
    assert guesses(drafter, [], params=changed) == []
    answered(drafter, [20, 21], params=changed)
    assert guesses(drafter, [], params=plain) == [10, 11]
    assert guesses(drafter, [], params=changed) == [20, 21]
    shorter = SamplingParams(temperature=0, max_tokens=1, logprobs=2, top_k=3, n=2)
    assert guesses(drafter, [], params=shorter) == [10, 11]


def test_every_sequence_of_a_full_batch_gets_the_guesses_asked_for(tmp_path):
    with LLM(str(write_tiny_model(tmp_path, head_dim=32)), "synthetic", drafter_options={"rates": "1,1,1,1"}) as llm:
        prompts, asked = [f"one {i}" for i in range(16)], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        llm.generate(prompts, asked)
        assert {out.stats.rounds for out in llm.generate(prompts, asked)} == {8}


def test_a_prediction_stands_for_a_record():
    drafter = SyntheticDrafter(DraftContext(VOCAB), SyntheticOptions("1,1"))
    assert guesses(drafter, [7], speculation=SpeculationParams(prediction=(7, 8, 9))) == [8, 9]


def test_guesses_are_right_at_the_rates():
    drafter = SyntheticDrafter(DraftContext(VOCAB), SyntheticOptions("0.8,0.4"))
    greedy = SamplingParams(temperature=0)
    answered(drafter, [10, 11], params=greedy)
    rounds = [guesses(drafter, [], params=greedy, noise=SequenceNoise(seed)) for seed in range(2000)]
    assert sum(first == 10 for first, _ in rounds) / 2000 == pytest.approx(0.8, abs=0.03)
    assert sum(both == [10, 11] for both in rounds) / 2000 == pytest.approx(0.4, abs=0.04)
    assert all(second != 11 for first, second in rounds if first != 10)


def test_what_is_recorded_is_bounded():
    drafter = SyntheticDrafter(DraftContext(VOCAB), SyntheticOptions(1, recorded_tokens=5))
    for seed in range(3):
        answered(drafter, [10, 11], noise=SequenceNoise(seed))
    assert [guesses(drafter, [], noise=SequenceNoise(seed)) for seed in range(3)] == [[], [10], [10]]
    answered(drafter, list(range(9)), noise=SequenceNoise(9))
    assert guesses(drafter, [0, 1, 2, 3], noise=SequenceNoise(9)) == [4]
    assert guesses(drafter, [0, 1, 2, 3, 4], noise=SequenceNoise(9)) == []


def test_no_scope_hears_of_another():
    drafter = SyntheticDrafter(DraftContext(VOCAB, scope_of=lambda sequence: sequence.id), SyntheticOptions(1))
    answered(drafter, [10, 11])
    assert guesses(drafter, []) == []


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1, "seed": 3}], ids=["greedy", "seeded"])
def test_the_text_is_plain_decodings_own_and_the_rate_is_met(tmp_path, params):
    llm = LLM(str(write_tiny_model(tmp_path, head_dim=32)), "synthetic", drafter_options={"rates": "0.9,0.8"})
    plain = LLM(llm.model, "none")
    asked = SamplingParams(**params, max_tokens=200, ignore_eos=True)
    expected = plain.generate("one two", asked)[0]
    first, second = (llm.generate("one two", asked)[0] for _ in range(2))
    assert first.token_ids == second.token_ids == expected.token_ids
    assert first.stats.accepted == 0
    assert second.stats.mean_accepted_length == pytest.approx(2.7, abs=0.3)


@pytest.mark.parametrize("cost", ["eagle3", "dflash", "draft-model=1M", "self"])
def test_drafts_take_the_time_of_a_named_drafter_and_the_text_stays(tmp_path, cost):
    model, asked = str(write_tiny_model(tmp_path, head_dim=32)), SamplingParams(temperature=0, max_tokens=30)
    options = {"rates": "1,1", "cost": cost}
    llm = LLM(model, "synthetic", drafter_options=options, precision="bf16")
    free = LLM(model, "synthetic", drafter_options={"rates": "1,1"}, precision="bf16")
    for engine in (llm, free):
        engine.generate("one two", asked)
    dear, cheap = (engine.generate("one two", asked)[0] for engine in (llm, free))
    assert dear.token_ids == cheap.token_ids
    assert dear.stats.rounds == cheap.stats.rounds < 15
    assert llm.memory.drafters > free.memory.drafters


def test_a_cost_that_nobody_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no stand-in for drafter 'suffix'"):
        LLM(str(write_tiny_model(tmp_path)), "synthetic", drafter_options={"rates": 0.5, "cost": "suffix"})
