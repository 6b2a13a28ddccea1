"""A sitting over the tiny model: what is run, in which order, on which prompts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from headstart.drafting.methods.none.drafter import NoDrafter
from headstart.drafting.options import NoOptions
from headstart.errors import ConfigError, HeadstartError
from headstart.loading.model import Model, load_model
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.prompts import BenchPrompt
from headstart_lab.bench.run import Sitting
from headstart_lab.bench.summary import summarise
from headstart_lab.workbench import PLAIN, Contender, Workbench, contenders

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = [BenchPrompt("a", "qa", ("Hello there?",)), BenchPrompt("b", "writing", ("One.", "Two."))]


@pytest.fixture(scope="module")
def model(torch_model_dir) -> Model:
    return load_model(torch_model_dir, "fp32")


def sit(model, names, prompts=PROMPTS, repeats=1, params=GREEDY):
    sitting = Sitting(model, Workbench.of_model(model), names, params)
    seen = []
    sitting.run(prompts, repeats, seen.append)
    return sitting.results, seen


def test_every_turn_is_decoded_by_every_contender_in_every_repeat(model):
    results, seen = sit(model, contenders("ngram,suffix"), repeats=2)
    wanted = {
        (name, prompt, turn, repeat)
        for name in ("none", "ngram", "suffix")
        for prompt, turn in (("a", 0), ("b", 0), ("b", 1))
        for repeat in (0, 1)
    }
    assert {(run.contender, run.prompt, run.turn, run.repeat) for run in results.runs} == wanted
    assert len(results.runs) == len(seen) == len(wanted)
    assert not results.differences
    assert len(results.read_seconds) == 6


def test_what_was_counted_adds_up(model):
    results, _ = sit(model, contenders("recycling"))
    for run in results.runs:
        assert len(run.tokens) == run.stats.tokens == 12
        assert len(run.depths) == run.stats.rounds
        assert 0 < run.stats.prefill_seconds < run.stats.seconds
        assert (max(run.depths) > 0) == (run.contender == "recycling")


def test_contenders_take_turns_at_going_first(model):
    results, _ = sit(model, contenders("ngram,suffix"), repeats=2)
    orders = {}
    for run in results.runs:
        orders.setdefault((run.repeat, run.prompt, run.turn), []).append(run.contender)
    assert orders[0, "a", 0] == ["none", "ngram", "suffix"]
    assert orders[0, "b", 0] == ["ngram", "suffix", "none"]
    assert orders[1, "b", 0] == ["suffix", "none", "ngram"]


@pytest.mark.thorough
def test_the_second_turn_goes_on_from_plain_decodings_answer(model):
    results, _ = sit(model, [*contenders("ngram"), wrong_contender()], repeats=2)
    lengths = {run.stats.prompt_tokens for run in results.runs if run.turn == 1}
    assert len(lengths) == 1
    answers = {run.tokens for run in results.runs if (run.prompt, run.turn, run.contender) == ("b", 1, PLAIN)}
    assert len(answers) == 1


@pytest.mark.thorough
def test_drafters_are_fresh_in_each_repeat(model):
    prompts = PROMPTS[:1]
    results, _ = sit(model, contenders("suffix,recycling"), prompts, repeats=3)
    for name in ("suffix", "recycling"):
        assert len({tuple(run.depths) for run in results.runs if run.contender == name}) == 1


class Fixed(NoDrafter):
    """Proposes the same tree: a chain of two, a branch, and a probe of three nodes beside them."""

    def propose(self, sequences, budgets):
        parents = np.array([-1, 0, 0, -1, 3, 4], np.int32)
        probe = np.array([False, False, False, True, True, True])
        tree = DraftTree(np.arange(6, dtype=np.int32) + 70, parents, probe=probe)
        return [tree if budget.nodes >= 6 and budget.depth >= 3 else DraftTree.empty() for budget in budgets]


def test_levels_are_those_of_guesses_and_not_of_probes(model):
    contender = Contender("fixed", lambda context: Fixed(context, NoOptions()))
    results, _ = sit(model, [*contenders(PLAIN), contender], PROMPTS[:1])
    run = results.runs[1]
    assert set(run.depths) <= {0, 2}
    assert run.depths[0] == 2


class ThirdSmallest(NoDrafter):
    """Breaks the engine's promise from outside: it commits a token of its own."""

    def propose(self, sequences, budgets):
        for sequence in sequences:
            if len(sequence.tokens) == sequence.prompt_length + 3:
                list.__setitem__(sequence.tokens, -1, 65)
        return [DraftTree.empty()] * len(sequences)


def wrong_contender() -> Contender:
    return Contender("wrong", lambda context: ThirdSmallest(context, NoOptions()))


def test_other_tokens_than_plain_decodings_are_found(model):
    results, _ = sit(model, [*contenders(PLAIN), wrong_contender()], repeats=2)
    assert set(results.differences) == {("wrong", "a", 0), ("wrong", "b", 0), ("wrong", "b", 1)}
    difference = results.differences["wrong", "a", 0]
    assert difference.index == 2
    assert difference.other == 65
    assert difference.gap > 0


def test_sampled_drafts_need_not_agree_and_point_masses_must(model):
    params = SamplingParams(temperature=1, max_tokens=24, seed=3, ignore_eos=True)
    results, _ = sit(model, contenders("draft-model:layers=1,bigram"), params=params)
    assert not results.differences
    must = {name: {run.must_agree for run in results.runs if run.contender == name} for name in (PLAIN, "bigram")}
    assert must == {PLAIN: {True}, "bigram": {True}}
    drawn = [run for run in results.runs if run.contender.startswith("draft-model")]
    assert all(not run.must_agree for run in drawn)


def test_each_prompt_has_draws_of_its_own(model):
    """The same prompt under two names: else all prompts would be accepted or rejected together."""
    twice = [BenchPrompt(name, "qa", ("Hello there?",)) for name in "ab"]
    params = SamplingParams(temperature=1, max_tokens=12, seed=3, ignore_eos=True)
    results, _ = sit(model, contenders("ngram"), prompts=twice, repeats=2, params=params)
    said = {(run.prompt, run.repeat): run.tokens for run in results.runs if run.contender == PLAIN}
    assert said["a", 0] == said["a", 1]
    assert said["b", 0] == said["b", 1]
    assert said["a", 0] != said["b", 0]


def test_what_nobody_asked_for_by_name_may_be_left_out(model):
    broken = Contender.parse("draft-model:layers=99", optional=True)
    results, _ = sit(model, [*contenders(PLAIN), broken])
    assert {run.contender for run in results.runs} == {PLAIN}
    assert "layers is 99" in results.skipped["draft-model:layers=99"]
    with pytest.raises(ConfigError, match="layers is 99"):
        sit(model, contenders("draft-model:layers=99"))


def test_what_cannot_run_is_one_line_and_no_failed_run(model):
    results, _ = sit(model, contenders("draft-model:layers=99,ngram,medusa"), repeats=2)
    assert {run.contender for run in results.runs} == {PLAIN, "ngram"}
    assert set(results.skipped) == {"draft-model:layers=99", "medusa"}
    with pytest.raises(ConfigError, match="layers is 99"):
        sit(model, contenders("draft-model:layers=99"))


class Failing(NoDrafter):
    """Gives up in its second answer."""

    answers = 0

    def begin(self, sequence):
        Failing.answers += 1
        if Failing.answers > 2:  # the first one is the warm-up
            raise HeadstartError("no more of this.")


def test_what_fails_on_the_way_is_left_out_and_the_others_go_on(model):
    failing = Contender("failing", lambda context: Failing(context, NoOptions()))
    results, _ = sit(model, [*contenders("ngram"), failing])
    assert results.skipped == {"failing": "no more of this."}
    assert Counter(run.contender for run in results.runs) == {PLAIN: 3, "ngram": 3}
    assert len(summarise(results)) == 2


def test_out_of_time_the_first_prompt_is_measured_all_the_same(model):
    sitting = Sitting(model, Workbench.of_model(model), contenders("ngram"), GREEDY)
    pace = sitting.prepare(PROMPTS[0])
    assert min(pace.opening, pace.per_character, pace.per_token) > 0
    sitting.run(PROMPTS, 9, seconds=0.0, max_tokens=5)
    assert {(run.prompt, run.repeat, len(run.tokens)) for run in sitting.results.runs} == {("a", 0, 5)}


@pytest.mark.thorough
def test_with_time_enough_all_repeats_are_measured(model):
    sitting = Sitting(model, Workbench.of_model(model), contenders("suffix"), GREEDY)
    sitting.prepare(PROMPTS[0])
    sitting.run(PROMPTS, 3, seconds=1e9)
    assert sitting.results.turns == 9
    # What the first repeat was prepared with is as fresh as what the others begin with.
    assert (
        len({tuple(run.depths) for run in sitting.results.runs if (run.contender, run.prompt) == ("suffix", "a")}) == 1
    )


def test_prompts_that_do_not_fit_are_left_out(model):
    results, _ = sit(model, contenders("ngram"), [*PROMPTS, BenchPrompt("long", "qa", ("word " * 200,))])
    assert "long" not in {run.prompt for run in results.runs}
    assert "too many" in results.skipped["prompt long, turn 1"]


def test_prompts_none_of_which_fits_are_refused(model):
    with pytest.raises(ConfigError, match="room for 600 more tokens"):
        sit(model, contenders("ngram"), params=SamplingParams(temperature=0, max_tokens=600))


@pytest.mark.parametrize(("after", "kept"), [(1, 2), (3, 4), (6, 6), (7, 6), (9, 6), (11, 12)])
def test_what_is_cut_short_leaves_whole_repeats_or_the_turns_of_the_first(model, after, kept):
    """Three turns by two contenders, twice; two runs of a turn are kept at once."""
    sitting, seen = Sitting(model, Workbench.of_model(model), contenders("ngram"), GREEDY), []

    def cut(run):
        seen.append(run)
        if len(seen) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sitting.run(PROMPTS, 2, cut)
    runs = sitting.results.runs
    assert len(runs) == kept
    by_turn = Counter((run.prompt, run.turn, run.repeat) for run in runs)
    assert set(by_turn.values()) == {2}
    assert len(summarise(sitting.results)) == 2


def test_plain_decoding_has_to_be_there(model):
    with pytest.raises(ConfigError, match="must begin with 'none'"):
        Sitting(model, Workbench.of_model(model), contenders("ngram")[1:], GREEDY)
