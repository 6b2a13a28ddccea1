"""Rounds of several sequences at once: they are told what they are told one by one; guesses compete as in Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from native_cases import no_number, random_tokens
from native_here import needs_native
from stretch_cases import CONFIG, DRAFTERS, ONE_PASS, Counted, CutText, make_engine, one_by_one, told
from toys import run_all, toy_sequence

from headstart.backends.native.growth import NativeGrowth, NativeHeadGrower
from headstart.backends.native.stretch import NativeStretches
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.inner_sequence import InnerSequence
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.methods.auto.outsiders import Outsiders
from headstart.drafting.methods.suffix.drafter import SuffixDrafter
from headstart.drafting.planning import constants
from headstart.drafting.planning.followed import Followed
from headstart.drafting.planning.guess_rates import GuessRates, SequenceRates
from headstart.drafting.planning.members import Member
from headstart.drafting.planning.merged import Guesses, MergedGuesses
from headstart.drafting.planning.parts import PlannerParts
from headstart.drafting.planning.pass_trials import TriedPass
from headstart.drafting.registry import create_drafter
from headstart.engine.engine import Engine
from headstart.engine.outputs import FinishReason
from headstart.engine.pool import DrafterPool
from headstart.engine.schedule import Limits
from headstart.passes.draft_tree import MAX_GRADES
from headstart.passes.rounds import CutRule, GuesserFault, RoundRecord, StretchDrafting, StretchLimits
from headstart.sampling.params import SamplingParams
from headstart_lab.plan.watching import Watching

pytestmark = needs_native


@pytest.mark.parametrize("drafter", [*DRAFTERS, *ONE_PASS])
@pytest.mark.parametrize("together", [2, 6])
def test_requests_that_decode_together_are_told_the_same(
    drafter: str, together: int, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ends elsewhere; the others go on, and new ones take the place."""
    answers = []
    for singly in (False, True):
        if singly:
            at_once, most = counted.rounds, counted.sequences
            one_by_one(monkeypatch)
        engine = make_engine(drafter, head_directory, max_sequences=together)
        sequences = [
            toy_sequence(
                engine,
                random_tokens(10 + 8 * seed, seed),  # each read in one pass
                sequence_id=seed,
                params=SamplingParams(temperature=0, max_tokens=14 + 9 * seed),
            )
            for seed in range(7)
        ]
        run_all(engine, sequences)
        engine.check()
        # Which rounds a request shares decides its budget, so that counts may differ once another one left.
        answers.append([told(each, drafter == "none") for each in sequences])
    assert answers[0] == answers[1]
    assert counted.rounds == at_once > 0
    assert most == together


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_one_says_ends_the_rounds_of_all(drafter: str, head_directory: Path, counted: Counted) -> None:
    """A stop token of one request, in the middle of a path or at its end, costs the others nothing."""
    params = SamplingParams(temperature=0, max_tokens=60)

    def decoded(stop: int | None) -> list[list[int]]:
        engine = make_engine(drafter, head_directory)
        wanted = [
            SamplingParams(temperature=0, max_tokens=60, stop_token_ids=[] if stop is None else [stop]),
            *[params] * 2,
        ]
        return run_all(
            engine,
            [
                toy_sequence(engine, random_tokens(30, seed), sequence_id=seed, params=each)
                for seed, each in enumerate(wanted)
            ],
        )

    said, *others = decoded(None)
    for stop in list(dict.fromkeys(said))[::5]:
        assert decoded(stop) == [said[: said.index(stop) + 1], *others]
    assert counted.sequences == 3


def test_requests_with_different_drafters_go_round_by_round(head_directory: Path, counted: Counted) -> None:
    runner = make_engine("suffix", head_directory).runner
    context = DraftContext(CONFIG.vocab_size, runner)
    pool = DrafterPool({name: create_drafter(name, context) for name in ("suffix", "ngram")}, "suffix")
    engine = Engine(runner, pool, Limits())
    params = SamplingParams(temperature=0, max_tokens=20)
    alone = run_all(engine, [toy_sequence(engine, random_tokens(20), params=params)])
    at_once = counted.rounds
    sequences = [
        toy_sequence(
            engine, random_tokens(20), sequence_id=i, params=params, speculation=SpeculationParams(drafter=name)
        )
        for i, name in enumerate(("suffix", "ngram"), start=1)
    ]
    assert run_all(engine, sequences) == alone * 2
    assert counted.sequences == 1
    assert at_once > 0


def test_in_a_full_cache_fewer_rounds_run_at_once(head_directory: Path, counted: Counted) -> None:
    """Four sequences of a block or two each; eight rounds of trees would need more blocks than there are."""
    outputs, rounds = [], []
    for cache_tokens in (4096, 352):
        engine = make_engine("suffix", head_directory, cache_tokens=cache_tokens)
        params = SamplingParams(temperature=0, max_tokens=30)
        sequences = [
            toy_sequence(engine, random_tokens(20, seed), sequence_id=seed, params=params) for seed in range(4)
        ]
        before = counted.rounds
        outputs.append(run_all(engine, sequences))
        rounds.append(counted.rounds - before)
    assert outputs[0] == outputs[1]
    assert min(rounds) > 0


def test_a_head_may_follow_some_of_a_batch_and_come_back_to_the_others(
    head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request is so long that it is alone in the end, however fast guesses make it."""

    def decoded(drafter: str) -> list[list[int]]:
        engine = make_engine(drafter, head_directory)
        sequences = [
            toy_sequence(
                engine,
                random_tokens(20, seed),
                sequence_id=seed,
                params=SamplingParams(temperature=0, max_tokens=count),
            )
            for seed, count in enumerate((30, 50, 70, 400))
        ]
        return run_all(engine, sequences)

    taps: list[int] = []
    run = NativeStretches.run

    def heard(stretches: NativeStretches, *arguments: object) -> list[RoundRecord]:
        guessers = arguments[5].guessers  # type: ignore[attr-defined]
        taps.append(sum(bool(each and each.taps) for of_sequence in guessers for each in of_sequence))
        return run(stretches, *arguments)  # type: ignore[arg-type]

    said = decoded("none")
    at_once = counted.rounds
    monkeypatch.setattr(constants, "FEW", 2)
    monkeypatch.setattr(NativeStretches, "run", heard)
    assert decoded("auto") == said
    assert 0 in taps
    assert taps[-1] == 1
    assert counted.rounds > at_once
    assert counted.sequences == 4


@pytest.mark.parametrize("drafter", ["eagle3", "auto"])
def test_a_head_that_fails_for_one_costs_a_tolerant_engine_its_guesses_alone(
    drafter: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0, max_tokens=40)

    def decoded(drafter: str, tolerant: bool) -> tuple[list[list[int]], DrafterPool]:
        engine = make_engine(drafter, head_directory)
        engine.drafters = DrafterPool(engine.drafters.drafters, "default", tolerant=tolerant)
        sequences = [
            toy_sequence(engine, random_tokens(30, seed), sequence_id=seed, params=params) for seed in range(3)
        ]
        return run_all(engine, sequences), engine.drafters

    said, _ = decoded("none", False)
    growers = NativeGrowth.growers

    def spoiled(growth: NativeGrowth, *arguments: object) -> list[NativeHeadGrower]:
        made = growers(growth, *arguments)  # type: ignore[arg-type]
        made[-1].compiled.pages = 0
        return made

    monkeypatch.setattr(NativeGrowth, "growers", spoiled)
    with pytest.raises(GuesserFault):
        decoded(drafter, False)
    answers, pool = decoded(drafter, True)
    assert answers == said
    assert pool.faults == {"default": 1}


def merged_in_python(
    view: InnerSequence, members: Sequence[Member], rates: Sequence[SequenceRates], budget: DraftBudget
) -> tuple[MergedGuesses, MergedGuesses, list[Guesses], int]:
    """Of one sequence: the merged tree, that of the first drafter alone, of each drafter its guesses with grades that
    say what the other does, and how many nodes go on from the likeliest path."""
    followed = Followed.begin(view, members)
    followed.rates = list(rates)
    followed.guesses = [
        (place, Guesses.of(member.drafter.propose([view], [budget])[0])) for place, member in enumerate(members)
    ]
    followed.merge(members)
    before, alone = len(followed.merged.tokens), followed.merged_first(members, 1)
    followed.go_on(members, budget, Outsiders([], DraftContext(1 << 20)).guesses)
    more = len(followed.merged.tokens) - before
    return followed.merged, alone, followed.related, more


def paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """[node] the tokens down to it."""
    said: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        said.append((*(said[parent] if parent >= 0 else ()), token))
    return said


def chosen_in_python(merged: Sequence[MergedGuesses], rule: CutRule, most: Sequence[int]) -> list[list[int]]:
    """Nodes of each sequence that the planner verifies with the same guesses [sequence] and costs."""
    ranked = [
        (merged[i].reach[node], i, node)
        for i, count in enumerate(most)
        for node in sorted(range(len(merged[i].reach)), key=lambda node: -merged[i].reach[node])[:count]
    ]
    ranked.sort(key=lambda each: -each[0])
    tokens = float(len(merged))
    said = tokens * rule.least_gain
    taken, size = rule.pass_seconds[0] + rule.other_seconds, 0
    for count, (reach, _, _) in enumerate(ranked[: len(rule.pass_seconds) - 1], start=1):
        tokens += reach
        seconds = rule.pass_seconds[count] + rule.other_seconds
        if tokens * taken > said * seconds:
            said, taken, size = tokens, seconds, count
    return [[node for _, sequence, node in ranked[:size] if sequence == i] for i in range(len(merged))]


@pytest.mark.parametrize("together", [1, 3])
def test_guesses_are_merged_and_cut_as_in_python(together: int, head_directory: Path) -> None:
    """Round for round, with made-up rates and costs."""
    engine = make_engine("auto", head_directory)
    planner = engine.drafter
    assert isinstance(planner, AutoDrafter)
    rng = np.random.default_rng(5)
    sequences = [
        toy_sequence(
            engine,
            random_tokens(30, seed) * 2,
            sequence_id=seed,
            params=SamplingParams(temperature=0, max_tokens=300),
        )
        for seed in range(together)
    ]
    for sequence in sequences:
        engine.add(sequence)
    while not all(sequence.num_output for sequence in sequences):
        engine.step()
    drafters, cache = [member.drafter for member in planner._members], engine.runner.cache
    views = [planner._followed[sequence.id].view for sequence in sequences]
    credited, competed, agreed, continued = [0, 0], 0, 0, 0
    for _ in range(40):
        limits = [
            StretchLimits(1, 1.0, 50, 500, frozenset(), DraftBudget(int(rng.integers(1, 25)), int(rng.integers(1, 6))))
            for _ in sequences
        ]
        budgets = [each.budget for each in limits]
        prior = [
            [SequenceRates(GuessRates(rng.uniform(0, 1, 3 * MAX_GRADES).tolist(), 1.0)) for _ in drafters]
            for _ in sequences
        ]
        nodes = sum(each.budget.nodes for each in limits)
        seconds = np.cumsum(rng.uniform(0.0, 0.4, rng.integers(1, nodes + 2))) + 1
        rule = CutRule(seconds.tolist(), 0.1, 1.0, math.inf, constants.LEAST_GAIN, constants.MOST_CERTAIN)
        merged = [
            merged_in_python(view, planner._members, known, budget)
            for view, budget, known in zip(views, budgets, prior, strict=True)
        ]
        continued += sum(more for _, _, _, more in merged)
        most = [each.budget.nodes for each in limits]
        wanted = chosen_in_python([each for each, _, _, _ in merged], rule, most)
        promised = chosen_in_python([alone for _, alone, _, _ in merged], rule, most)
        # Those of a head come from one draft, with room for every sequence.
        offered = [drafter.stretch(views, limits) for drafter in drafters]  # type: ignore[attr-defined]
        guessers = [[drafting.guessers[i][0] for drafting in offered] for i in range(together)]
        for known in zip(guessers, prior, strict=True):
            for guesser, rates in zip(*known, strict=True):
                guesser.rates = rates.rates
        with cache.reserve({each.id: its.rows for each, its in zip(sequences, limits, strict=True)}):
            (done,) = engine.runner.run_stretch(
                [each.id for each in sequences],
                [each.tokens[-1] for each in sequences],
                limits,
                StretchDrafting(guessers, rule),
            )
            for sequence, span in zip(sequences, done.spans, strict=True):
                list.extend(sequence.tokens, [*[span.tokens[node] for node in span.path], span.token])
                cache.commit(sequence.id, range(span.said))
        competed += sum(bool(span.tokens) for span in done.spans) > 1
        for i, span in enumerate(done.spans):
            both, alone, each_guesses, _ = merged[i]
            tree = both.tree(wanted[i])
            assert (span.tokens, span.parents) == (tree.tokens.tolist(), tree.parents.tolist())
            first, all_gains = (
                sum(given.reach[node] for node in nodes) for given, nodes in ((alone, promised[i]), (both, wanted[i]))
            )
            assert span.gains == pytest.approx([first, all_gains - first], rel=1e-12, abs=1e-12)
            assert span.verified == [len(promised[i]), len(wanted[i]) - len(promised[i])]
            credited = [count + (gain > 0) for count, gain in zip(credited, span.gains, strict=True)]
            chances = dict(zip(paths(both.tokens, both.parents), both.chances, strict=True))
            assert span.chances == pytest.approx([chances[path] for path in paths(span.tokens, span.parents)])
            for guesses, guesser in zip(each_guesses, guessers[i], strict=True):
                guesser.finish()
                judged = guesses.judge(sequences[i].tokens[-span.said :])
                said = [(judgement.grade, judgement.holds) for judgement in guesser.judgements]
                assert said == [(guesses.grades[guess], holds) for guess, holds in judged]
                agreed += sum(MAX_GRADES <= grade < 2 * MAX_GRADES for grade, _ in said)
    assert min(credited) > 0
    assert agreed > 0
    assert continued > 0
    assert competed > 0 or together == 1


def test_a_planner_learns_from_the_rounds_of_several(
    head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass is told to have taken the same, so that guesses pay on any machine."""
    trials = [TriedPass(rows, 0.01) for rows in (1, 48)]
    monkeypatch.setattr(AutoDrafter, "parts", PlannerParts(trials=lambda runner: trials))
    engine = make_engine("auto", head_directory)
    planner = engine.drafter
    assert isinstance(planner, AutoDrafter)
    timed: list[int] = []
    add = planner.costs.passes.add

    def adding(rows: int, seconds: float, *rest: float) -> None:
        timed.append(rows)
        add(rows, 0.01, *rest)

    monkeypatch.setattr(planner.costs.passes, "add", adding)
    params = SamplingParams(temperature=0, max_tokens=90)
    sequences = [toy_sequence(engine, random_tokens(40, seed), sequence_id=seed, params=params) for seed in range(3)]
    run_all(engine, sequences)
    assert counted.sequences == 3
    assert len(timed) == max(each.stats.rounds for each in sequences)
    assert any(rows > 3 for rows in timed)


@pytest.mark.parametrize(("allowance", "plain", "rounds"), [(-1.0, 0.0, 2), (math.inf, 0.0, 8), (1.0, 1e6, 8)])
def test_rounds_that_do_not_pay_end_a_stretch(
    allowance: float, plain: float, rounds: int, head_directory: Path
) -> None:
    """After two of them, with the one in which more is lost than may be."""
    engine = make_engine("auto", head_directory)
    sequence = toy_sequence(engine, random_tokens(30) * 2, params=SamplingParams(temperature=0, max_tokens=300))
    engine.add(sequence)
    while not sequence.num_output:
        engine.step()
    limits = [StretchLimits(8, 60.0, 200, 500, frozenset(), DraftBudget(4, 4))]
    drafting = engine.drafter.stretch([sequence], limits)  # type: ignore[attr-defined]
    ruled = replace(drafting, cut_rule=CutRule([1.0], 0.0, plain, allowance))
    with engine.runner.cache.reserve({sequence.id: limits[0].rows}):
        done = engine.runner.run_stretch([sequence.id], [sequence.tokens[-1]], limits, ruled)
    assert len(done) == rounds


@pytest.mark.parametrize("drafter", ["suffix", "eagle3"])
def test_a_profile_times_the_rounds_of_a_batch(drafter: str, head_directory: Path, counted: Counted) -> None:
    engine = make_engine(drafter, head_directory)
    watching = Watching(engine.drafter)
    engine.drafters.drafters["default"] = watching
    params = SamplingParams(temperature=0, max_tokens=60)
    run_all(
        engine, [toy_sequence(engine, random_tokens(40, seed), sequence_id=seed, params=params) for seed in range(2)]
    )
    assert counted.sequences == 2
    rounds = len(watching.timed[2])
    assert rounds > 10
    assert {levels for levels, _ in watching.timed[2]} - {0, 1}
    seconds = watching.profile(drafter, [2]).seconds[2]
    assert seconds.other + seconds.other_step > 0  # which of them, the machine's load says


def test_a_row_without_a_best_token_fails_its_request_alone(
    head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("none", head_directory)
    params = SamplingParams(temperature=0, max_tokens=40)
    prompts = [random_tokens(20, seed) for seed in range(3)]

    def decoded() -> list[FinishReason | None]:
        sequences = [
            toy_sequence(engine, prompt, sequence_id=seed, params=params) for seed, prompt in enumerate(prompts)
        ]
        said[:] = run_all(engine, sequences)
        return [each.finish_reason for each in sequences]

    said: list[list[int]] = []
    assert decoded() == [FinishReason.LENGTH] * 3
    before = [list(each) for each in said]
    others = {token for each in before[1:] for token in each} | {token for prompt in prompts for token in prompt}
    place = next(i for i, token in enumerate(before[0]) if i > 5 and token not in others and token not in before[0][:i])
    with no_number(engine.runner.backend, before[0][place]):  # type: ignore[arg-type]
        reasons = decoded()
    assert reasons == [FinishReason.ERROR, FinishReason.LENGTH, FinishReason.LENGTH]
    assert said == [before[0][: place + 1], *before[1:]]
    assert counted.sequences == 3


def test_nobody_is_asked_where_there_is_no_room_for_a_guess(head_directory: Path) -> None:
    """The one token that is missing to a request is no question to a drafter, and tells nothing of it."""
    engine = make_engine("suffix", head_directory)
    sequences = [toy_sequence(engine, random_tokens(20) * 2, sequence_id=i) for i in range(2)]
    for sequence in sequences:
        engine.add(sequence)
    while not all(sequence.num_output for sequence in sequences):
        engine.step()
    for tokens, asked in (([1, 1], [False, False]), ([1, 9], [False, True])):
        limits = [StretchLimits(1, 1.0, count, 100, frozenset(), DraftBudget(4, 4)) for count in tokens]
        drafting = engine.drafter.stretch(sequences, limits)  # type: ignore[attr-defined]
        with engine.runner.cache.reserve({each.id: its.rows for each, its in zip(sequences, limits, strict=True)}):
            (done,) = engine.runner.run_stretch(
                [each.id for each in sequences], [each.tokens[-1] for each in sequences], limits, drafting
            )
        assert [span.asked for span in done.spans] == asked
        assert (done.draft_seconds[0] > 0) == any(asked)
        assert done.draft_seconds[1] == 0.0


def test_a_text_is_learnt_again_where_its_last_rounds_do_not_count(head_directory: Path, counted: Counted) -> None:
    """A stop string of one request drops rounds of the other, whose text has gone further."""
    params = SamplingParams(temperature=0, max_tokens=120)
    engine = make_engine("suffix", head_directory)
    (said,) = run_all(engine, [toy_sequence(engine, random_tokens(60), params=params)])
    fresh = next(i for i in range(40, len(said)) if said[i] not in said[:i])
    engine = make_engine("suffix", head_directory)
    stopped = toy_sequence(engine, random_tokens(60), sequence_id=0, params=params)
    stopped.text = CutText(said[fresh])
    other = toy_sequence(engine, random_tokens(50, 1), sequence_id=1, params=params)
    for sequence in (stopped, other):
        engine.add(sequence)
    while not stopped.finished:
        engine.step()
    drafter = engine.drafter
    assert isinstance(drafter, SuffixDrafter)
    learnt = drafter.caught_up(other.id).text
    anew = drafter.new_state(other)
    anew.extend(other.tokens)
    for nodes, depth in ((15, 15), (4, 2)):
        one, again = learnt.guess(nodes, depth), anew.text.guess(nodes, depth)  # type: ignore[union-attr]
        assert all(np.array_equal(*pair) for pair in zip(one, again, strict=True))
    assert counted.sequences == 2
