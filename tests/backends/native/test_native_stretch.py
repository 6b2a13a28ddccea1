"""Rounds that are run at once end where they end one by one: tokens, counts, cache, and what drafters know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from native_cases import native, no_number, random_tokens, small_config
from native_here import FASTEST, needs_native
from planned_toys import eager_planner
from stretch_cases import (
    CONFIG,
    DRAFTERS,
    ONE_PASS,
    Counted,
    CutText,
    ShortText,
    guesser_of,
    make_engine,
    mapped_head,
    mapped_tables,
    one_by_one,
    told,
)
from toys import run_all, toy_sequence

from headstart.backends.native.growth import NativeGrowth, NativeHeadGrower
from headstart.drafting.base import DraftBudget, Drafter, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.planning.guess_rates import GuessRates
from headstart.drafting.registry import create_drafter
from headstart.engine.engine import Engine
from headstart.engine.outputs import FinishReason
from headstart.engine.pool import DrafterPool
from headstart.engine.schedule import Limits
from headstart.engine.stretch import AMONG_OTHERS, MOST_ROUNDS
from headstart.models.config import OutputHeadConfig
from headstart.passes.rounds import GuesserFault, StretchDrafting, StretchLimits
from headstart.passes.runner import ModelRunner
from headstart.sampling.params import SamplingParams
from headstart_lab.bench.run import RecordingDrafter
from headstart_lab.plan.pass_times import PassTimer, measure_passes
from headstart_lab.plan.watching import Watching
from headstart_lab.workbench import Workbench
from headstart_lab.wrapper import DrafterWrapper, WatchedRound
from headstart_train.files.heads import save_head

pytestmark = needs_native


@pytest.mark.parametrize("drafter", [*DRAFTERS, *ONE_PASS])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 90])
def test_a_lone_request_is_told_the_same(
    drafter: str, max_tokens: int, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for singly in (False, True):
        if singly:
            at_once = counted.rounds
            one_by_one(monkeypatch)
        engine = make_engine(drafter, head_directory)
        sequences = []
        for seed in range(4):
            params = SamplingParams(temperature=0, max_tokens=max_tokens)
            sequences.append(toy_sequence(engine, random_tokens(3 + 30 * seed, seed), sequence_id=seed, params=params))
            run_all(engine, sequences[-1:])
        answers.append([told(each, drafter != "auto") for each in sequences])
    assert answers[0] == answers[1]
    assert counted.rounds == at_once
    assert at_once > 0 or max_tokens <= 2


@pytest.mark.parametrize(
    ("others", "stop", "most"), [(0, (), MOST_ROUNDS), (0, ("no end",), AMONG_OTHERS), (2, (), AMONG_OTHERS)]
)
def test_fewer_rounds_run_at_once_where_they_may_be_for_nothing(
    others: int,
    stop: tuple[str, ...],
    most: int,
    head_directory: Path,
    counted: Counted,
) -> None:
    engine = make_engine("none", head_directory)
    params = SamplingParams(temperature=0, max_tokens=60, stop=stop)
    sequences = [toy_sequence(engine, [7 + i], sequence_id=i, params=params) for i in range(1 + others)]
    run_all(engine, sequences, seconds=60.0)
    assert counted.most_rounds == most


def test_where_tokens_are_shown_rounds_end_sooner(head_directory: Path, counted: Counted) -> None:
    engine = make_engine("none", head_directory)
    run_all(engine, [toy_sequence(engine, [7], params=SamplingParams(temperature=0, max_tokens=60))], seconds=0.0)
    assert counted.most_rounds <= 1


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_requests_end_at_their_own_tokens_and_at_the_context(
    drafter: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token of an output ends another request: in the middle of a path, at its end, in a first round."""
    engine = make_engine(drafter, head_directory)
    (said,) = run_all(
        engine, [toy_sequence(engine, random_tokens(40), params=SamplingParams(temperature=0, max_tokens=60))]
    )
    for stop in list(dict.fromkeys(said))[::3]:
        params = SamplingParams(temperature=0, max_tokens=60, stop_token_ids=[stop])
        sequence = toy_sequence(engine, random_tokens(40), params=params)
        (cut,) = run_all(engine, [sequence])
        assert cut == said[: said.index(stop) + 1]
        assert (sequence.finish_reason, sequence.stop_reason) == (FinishReason.STOP, stop)
    assert counted.rounds > 0
    for context in (42, 47, 73):
        small = make_engine(drafter, head_directory, max_context=context)
        sequence = toy_sequence(small, random_tokens(40), params=SamplingParams(temperature=0, max_tokens=60))
        assert run_all(small, [sequence]) == [said[: context - 40]]
        assert sequence.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_requests_that_come_and_go_change_nothing(
    drafter: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds at once, together with others, at once again; the next turn of a chat begins with what was said."""
    params = SamplingParams(temperature=0, max_tokens=70)

    def decoded() -> list[list[int]]:
        engine = make_engine(drafter, head_directory, prefixes=True)
        first = toy_sequence(engine, random_tokens(50), sequence_id=0, params=params)
        engine.add(first)
        while first.num_output < 20:
            engine.step()
            engine.check()
        short = SamplingParams(temperature=0, max_tokens=9)
        others = [toy_sequence(engine, random_tokens(20, i), sequence_id=i, params=short) for i in (1, 2)]
        run_all(engine, others)
        turn = toy_sequence(engine, [*first.tokens, 5, 6, 7], sequence_id=3, params=params)
        run_all(engine, [turn])
        assert turn.stats.cached_tokens >= 96
        return [each.output for each in (first, *others, turn)]

    together = decoded()
    assert counted.rounds > 0
    one_by_one(monkeypatch)
    assert decoded() == together


def test_a_head_knows_afterwards_what_it_would_know(
    head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of its cache and features that wait, to the bit; prefixes that it keeps for others."""
    known = []
    for singly in (False, True):
        if singly:
            one_by_one(monkeypatch)
        engine = make_engine("eagle3", head_directory, prefixes=True)
        sequence = toy_sequence(engine, random_tokens(40), params=SamplingParams(temperature=0, max_tokens=200))
        engine.add(sequence)
        while sequence.num_output < 120:
            engine.step()
        # Up to the same token, whatever rounds brought it there.
        reading = engine.drafter.reader.readings[0]  # type: ignore[attr-defined]
        assert reading.end == len(sequence.tokens) - 1
        reading.cache.truncate(150)
        pages = reading.cache.pages
        memory = reading.cache._pool.storage.memory
        known.append((memory.reshape(-1, len(memory) // reading.cache._pool.storage.num_blocks)[pages[:4]].copy(),))
        kept = engine.drafter.reader.prefixes._blocks  # type: ignore[attr-defined]
        features = {block.key[1]: block.features for block in kept.values()}
        known[-1] += ([features[tuple(sequence.tokens[first : first + 32])] for first in range(0, 128, 32)],)
    assert counted.rounds > 0
    (rows, features), (other_rows, other_features) = known
    assert np.array_equal(rows, other_rows)
    assert all(np.array_equal(one, other) for one, other in zip(features, other_features, strict=True))


def test_a_head_with_a_window_guesses_alike(tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts of which it has read the end, and rows that fall behind while it guesses."""
    save_head(mapped_head(windows=(20,)), tmp_path)

    def decoded() -> list[dict[str, object]]:
        engine = make_engine("eagle3", tmp_path)
        prompts = [random_tokens(length, seed) for seed, length in enumerate((100, 10))]
        params = SamplingParams(temperature=0, max_tokens=90)
        said = run_all(
            engine, [toy_sequence(engine, prompt, params=params, sequence_id=i) for i, prompt in enumerate(prompts)]
        )
        pages = engine.drafter.reader.running._pages  # type: ignore[attr-defined]
        assert len(pages._free) == pages.storage.num_blocks
        return said

    together = decoded()
    assert counted.rounds > 0
    one_by_one(monkeypatch)
    assert decoded() == together


@pytest.mark.parametrize(
    "wish",
    [
        {"params": SamplingParams(temperature=0.8, logit_bias={3: 1.0}, max_tokens=30, seed=3)},
        {"params": SamplingParams(temperature=0, max_tokens=30, logprobs=2)},
        {"params": SamplingParams(temperature=0, max_tokens=30, repetition_penalty=1.2)},
        {"params": SamplingParams(temperature=0, max_tokens=30), "speculation": SpeculationParams(typical=0.1)},
    ],
    ids=["bias", "logprobs", "penalty", "typical"],
)
def test_requests_whose_logits_are_looked_at_go_round_by_round(
    wish: dict[str, object], head_directory: Path, counted: Counted
) -> None:
    engine = make_engine("suffix", head_directory)
    run_all(engine, [toy_sequence(engine, random_tokens(20), **wish)])  # type: ignore[arg-type]
    assert counted.rounds == 0


def test_plain_requests_of_an_engine_with_a_drafter_run_at_once(head_directory: Path, counted: Counted) -> None:
    engine = make_engine("eagle3", head_directory)
    sequence = toy_sequence(engine, random_tokens(20), speculation=SpeculationParams(enabled=False))
    run_all(engine, [sequence])
    assert counted.rounds > 0
    assert sequence.stats.drafted == 0


@pytest.mark.parametrize("drafter", ["suffix", "eagle3", "auto"])
def test_plain_requests_do_not_keep_others_from_rounds_at_once(
    drafter: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for singly in (False, True):
        if singly:
            at_once = counted.rounds
            one_by_one(monkeypatch)
        engine = make_engine(drafter, head_directory)
        sequences = [
            toy_sequence(
                engine,
                random_tokens(20 + 7 * seed, seed),
                sequence_id=seed,
                params=SamplingParams(temperature=0.7 * (seed == 3), max_tokens=60, seed=seed),
                speculation=SpeculationParams(enabled=seed not in (0, 2)),
            )
            for seed in range(4)
        ]
        run_all(engine, sequences)
        assert sequences[0].stats.drafted == sequences[2].stats.drafted == 0
        assert drafter == "auto" or sequences[1].stats.drafted > 0
        answers.append([told(each, drafter != "auto") for each in sequences])
    assert answers[0] == answers[1]
    assert counted.rounds == at_once > 0
    assert counted.sequences == 4


def test_where_room_is_short_rounds_go_one_by_one(head_directory: Path, counted: Counted) -> None:
    engine = make_engine("suffix", head_directory, cache_tokens=96)
    sequence = toy_sequence(engine, random_tokens(20), params=SamplingParams(temperature=0, max_tokens=60))
    (cramped,) = run_all(engine, [sequence])
    few = counted.rounds
    roomy = make_engine("suffix", head_directory)
    assert run_all(roomy, [toy_sequence(roomy, random_tokens(20), params=sequence.params)]) == [cramped]
    assert few < counted.rounds - few


@pytest.mark.parametrize("drafter", ["none", "suffix"])
def test_a_row_without_a_best_token_fails_its_request(
    drafter: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedding that is no number, of a token that is said after some others."""
    config = small_config(head=OutputHeadConfig(tied=False))
    backend = native(config, "bf16", FASTEST)
    runner = ModelRunner(backend, 1024)
    engine = Engine(runner, create_drafter(drafter, DraftContext(config.vocab_size, runner)), Limits())
    params = SamplingParams(temperature=0, max_tokens=40)
    (said,) = run_all(engine, [toy_sequence(engine, random_tokens(20), params=params)])
    fresh = next(i for i in range(8, len(said)) if said[i] not in [*random_tokens(20), *said[:i]])
    with no_number(backend, said[fresh]):
        sequence = toy_sequence(engine, random_tokens(20), sequence_id=1, params=params)
        run_all(engine, [sequence])
    assert sequence.finish_reason is FinishReason.ERROR
    assert "not" in str(sequence.error)
    assert sequence.output == said[: fresh + 1]
    assert counted.rounds > 0


def test_a_planner_that_goes_on_at_once_learns_from_every_round(
    head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine("auto", head_directory)
    planner = engine.drafter
    assert isinstance(planner, AutoDrafter)
    judged = []
    count = GuessRates.count
    monkeypatch.setattr(GuessRates, "count", lambda rates, *given: (judged.append(given), count(rates, *given))[1])
    before = planner.costs.passes._passes
    sequence = toy_sequence(engine, random_tokens(60), params=SamplingParams(temperature=0, max_tokens=90))
    run_all(engine, [sequence])
    assert counted.rounds > 0
    assert planner.costs.passes._passes - before == sequence.stats.rounds
    assert any(holds for _, holds in judged)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_those_who_watch_a_drafter_see_every_round(
    drafter: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bench's recorder and the planner's profile, of the same rounds at once and one by one."""
    seen = []
    for singly in (False, True):
        if singly:
            one_by_one(monkeypatch)
        engine = make_engine(drafter, head_directory)
        recorder = RecordingDrafter(engine.drafter)
        engine.drafters.drafters["default"] = recorder
        params = SamplingParams(temperature=0, max_tokens=80)
        sequence = toy_sequence(engine, random_tokens(40), params=params)
        run_all(engine, [sequence])
        depths = recorder.take_depths()
        assert len(depths) == sequence.stats.rounds
        # What `auto` guesses follows the seconds that its guessers took; what is said does not.
        seen.append(sequence.output if drafter == "auto" else depths)
    assert seen[0] == seen[1]
    assert counted.rounds > 0
    monkeypatch.undo()
    engine = make_engine(drafter, head_directory)
    watching = Watching(engine.drafter)
    engine.drafters.drafters["default"] = watching
    sequence = toy_sequence(engine, random_tokens(40), params=params)
    run_all(engine, [sequence])
    costs = watching.profile(drafter).seconds[1]
    assert len(watching.timed[1]) == sequence.stats.rounds
    assert costs.other + costs.other_step > 0  # which of them it was is a matter of measured times
    assert costs.at_once
    if drafter in ("suffix", "eagle3"):
        assert {levels for levels, _ in watching.timed[1]} - {0, 1}  # and now and then a single level
    if drafter == "eagle3":
        width = 6
        assert any(0 < nodes <= width for nodes, _ in watching.passes[1, True])  # which is one in stretches, too
        assert sum(map(len, watching.profile(drafter).parents)) > 0


class Kept(DrafterWrapper):
    """Keeps what a drafter's rounds came to."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.seen: list[tuple[object, ...]] = []
        self.at_once = 0

    def watch(self, rounds: Sequence[WatchedRound]) -> None:
        self.at_once += sum(each.at_once for each in rounds)
        for each in rounds:
            for outcome in each.outcomes:
                draft = outcome.draft
                grades = None if draft.grades is None else draft.grades.tolist()
                self.seen.append(
                    (
                        outcome.first_position,
                        outcome.row_tokens.tolist(),
                        (draft.parents.tolist(), grades) if outcome.committed else None,
                        outcome.accepted,
                        outcome.committed,
                        outcome.pass_rows,
                    )
                )


@pytest.mark.parametrize("drafter", ["none", "suffix", "eagle3"])
def test_rounds_come_to_the_same_for_those_who_watch(
    drafter: str, head_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last one, where the output ends in the middle of an accepted path."""
    params = SamplingParams(temperature=0, max_tokens=80)

    def rounds(count: int) -> list[tuple[object, ...]]:
        engine = make_engine(drafter, head_directory)
        engine.drafters.drafters["default"] = kept = Kept(engine.drafter)
        sequence = toy_sequence(engine, random_tokens(40), params=params)
        sequence.text = ShortText(count)
        run_all(engine, [sequence])
        at_once.append(kept.at_once)
        assert len(sequence.output) == count
        return kept.seen

    at_once: list[int] = []
    ends, count = [70], 0
    for *_, committed, _ in rounds(70):
        count += len(committed)  # type: ignore[arg-type]
        if len(committed) > 1:  # type: ignore[arg-type]
            ends.append(count - 1)
    assert (len(ends) > 1) == (drafter != "none")
    ends = ends[:1] + ends[-2:]
    together = [rounds(count) for count in ends]
    assert all(at_once)
    one_by_one(monkeypatch)
    at_once = []
    assert [rounds(count) for count in ends] == together
    assert not any(at_once)


@pytest.mark.parametrize("temperature", [0, 1])
def test_passes_are_timed_among_rounds_that_are_run_at_once(temperature: float, counted: Counted) -> None:
    bench = Workbench(native(CONFIG, "bf16", FASTEST), max_context=200, max_sequences=2)
    params = SamplingParams(temperature=temperature, seed=0)
    times = measure_passes(bench, 8, [1, 2], 2, params)
    assert sorted(times.at_once) == sorted(times.seconds) == [1, 2]
    assert counted.rounds == 2 * 2 * 3
    assert all(seconds > 0 for seconds in times.at_once.values())
    assert bench.runner.cache.num_free_tokens == bench.runner.cache.allocator.num_blocks * 32
    # A sequence that is too long by the most rows is left alone.
    bench.runner.cache.add(0)
    with bench.runner.cache.reserve({0: 150}):
        bench.runner.cache.commit(0, range(150))
    timer = PassTimer(bench, params)
    timer.time([0])
    assert timer.times(min) is None
    timer = PassTimer(bench, params, most_rows=32)
    timer.time([0])
    found = timer.times(min)
    assert found is not None
    assert (found.context, list(found.seconds[1])) == (150, [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32])
    assert bench.runner.cache.length(0) == 150
    # Penalties are computed on the logits, round by round.
    alone = measure_passes(bench, 8, [1], 1, SamplingParams(temperature=0, repetition_penalty=1.5))
    assert not alone.at_once


def test_draws_that_cannot_be_told_in_short_leave_nothing_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Workbench(native(CONFIG, "bf16", FASTEST), max_context=200)
    monkeypatch.setattr(bench.runner, "run_stretch", lambda *arguments: [])
    times = measure_passes(bench, 8, [1], 2, SamplingParams(temperature=1, seed=0))
    assert not times.at_once
    assert float(times.of(1, np.array(1.0), at_once=True)) == times.seconds[1][1]


def test_guessers_of_another_library_are_refused(head_directory: Path) -> None:
    engine = make_engine("suffix", head_directory)
    sequence = toy_sequence(engine, random_tokens(20))
    engine.add(sequence)
    while not sequence.num_output:
        engine.step()
    limits = StretchLimits(2, 1.0, 10, 100, frozenset(), DraftBudget(4, 4))
    guesser = guesser_of(engine.drafter, sequence, limits)
    guesser.compiled.isa = "another"
    with pytest.raises(GuesserFault, match="another"):
        engine.runner.run_stretch([sequence.id], [sequence.tokens[-1]], [limits], StretchDrafting([[guesser]]))
    guesser.compiled = object()
    with pytest.raises(GuesserFault, match="no guesser"):
        engine.runner.run_stretch([sequence.id], [sequence.tokens[-1]], [limits], StretchDrafting([[guesser]]))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_goes_on_behind_a_stop_string_is_dropped(drafter: str, head_directory: Path, counted: Counted) -> None:
    """The next turn of the chat, which takes over what was kept of the first, says what it would say anyway."""
    params = SamplingParams(temperature=0, max_tokens=120)
    engine = make_engine(drafter, head_directory, prefixes=True)
    (said,) = run_all(engine, [toy_sequence(engine, random_tokens(60), params=params)])
    fresh = next(i for i in range(70, len(said)) if said[i] not in said[:i])
    sequence = toy_sequence(engine, random_tokens(60), sequence_id=1, params=params)
    sequence.text = CutText(said[fresh])
    assert run_all(engine, [sequence]) == [said[: fresh + 1]]
    assert sequence.stop_reason == "so it ends"
    turn = toy_sequence(engine, [*sequence.tokens, 3, 4], sequence_id=2, params=params)
    other = make_engine(drafter, head_directory)
    assert run_all(engine, [turn]) == run_all(other, [toy_sequence(other, [*sequence.tokens, 3, 4], params=params)])
    assert counted.rounds > 0


def test_an_aborted_request_leaves_nothing_behind(head_directory: Path, counted: Counted) -> None:
    engine = make_engine("auto", head_directory)
    params = SamplingParams(temperature=0, max_tokens=120)
    (said,) = run_all(engine, [toy_sequence(engine, random_tokens(60), params=params)])
    sequence = toy_sequence(engine, random_tokens(60), sequence_id=1, params=params)
    engine.add(sequence)
    while sequence.num_output < 30:
        engine.step()
    engine.abort(sequence)
    engine.check()
    assert engine.runner.cache.allocator.num_free == engine.runner.cache.allocator.num_blocks
    assert run_all(engine, [toy_sequence(engine, random_tokens(60), sequence_id=2, params=params)]) == [said]


def test_two_heads_go_round_by_round(head_directory: Path, counted: Counted) -> None:
    few = {"model": str(head_directory), "precision": "bf16"}
    runner = ModelRunner(native(CONFIG, "bf16", FASTEST), 4096)
    context = DraftContext(CONFIG.vocab_size, runner, lend_tables=mapped_tables)
    both = [create_drafter("eagle3", context, **few) for _ in range(2)]
    planner = eager_planner(context, {"drafters": "suffix+eagle3", "model": str(head_directory)})
    for member, drafter in zip(planner._members, both, strict=True):  # type: ignore[attr-defined]
        member.drafter = drafter
    engine = Engine(runner, planner, Limits(max_context=2048))
    plain = make_engine("none", head_directory)
    params = SamplingParams(temperature=0, max_tokens=60)
    assert run_all(engine, [toy_sequence(engine, random_tokens(30), params=params)]) == run_all(
        plain, [toy_sequence(plain, random_tokens(30), params=params)]
    )
    sequence = toy_sequence(engine, random_tokens(30), sequence_id=1)
    engine.add(sequence)
    while not sequence.num_output:
        engine.step()
    limits = StretchLimits(2, 1.0, 10, 100, frozenset(), DraftBudget(4, 4))
    drafting = StretchDrafting([[guesser_of(drafter, sequence, limits) for drafter in both]])
    with pytest.raises(GuesserFault, match="2 guessers"):
        engine.runner.run_stretch([sequence.id], [sequence.tokens[-1]], [limits], drafting)


@pytest.mark.parametrize("fault", ["pages", "room"])
@pytest.mark.parametrize("drafter", ["eagle3", "auto"])
def test_a_head_that_fails_costs_a_tolerant_engine_its_guesses_alone(
    drafter: str, fault: str, head_directory: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make_engine("none", head_directory)
    params = SamplingParams(temperature=0, max_tokens=60)
    said = run_all(plain, [toy_sequence(plain, random_tokens(30), params=params)])
    growers = NativeGrowth.growers

    def spoiled(growth: NativeGrowth, *arguments: object) -> list[NativeHeadGrower]:
        made = growers(growth, *arguments)  # type: ignore[arg-type]
        for each in made:
            setattr(each.compiled, fault, 0)
        return made

    monkeypatch.setattr(NativeGrowth, "growers", spoiled)
    engine = make_engine(drafter, head_directory)
    with pytest.raises(GuesserFault):
        run_all(engine, [toy_sequence(engine, random_tokens(30), params=params)])
    engine = make_engine(drafter, head_directory)
    engine.drafters = DrafterPool(engine.drafters.drafters, "default", tolerant=True)
    assert run_all(engine, [toy_sequence(engine, random_tokens(30), params=params)]) == said
    assert engine.drafters.faults == {"default": 1}
