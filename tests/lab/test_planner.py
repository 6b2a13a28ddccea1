from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from toys import ToyBackend, repeating_logits

from headstart.drafting import registry
from headstart.drafting.base import DraftBudget, RoundOutcome, SequenceView, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.method import Method
from headstart.errors import ConfigError
from headstart.passes.draft_tree import DraftTree
from headstart.sampling.params import SamplingParams
from headstart_charts.page import Table
from headstart_lab.plan.draft_limits import MOST_NODES, MOST_TOKENS, freely, limits_of
from headstart_lab.plan.forecast import (
    LENGTHS,
    Checked,
    PassTimes,
    Plan,
    _shapes,
    check,
    forecast,
    make_plan,
    measure_passes,
)
from headstart_lab.plan.plan_report import exhibits, to_json
from headstart_lab.plan.profiles import Profile, RoundSeconds
from headstart_lab.plan.watching import Watching, line, profile
from headstart_lab.theory import formulas as theory
from headstart_lab.theory.trees import best_first_tree, sequoia_tokens
from headstart_lab.workbench import Contender, Workbench

FREE = RoundSeconds(0.0, 0.0, 0.0)
PLAIN = Profile("none", [[]] * 4, [[]] * 4, {1: FREE, 2: FREE})


def chain(alpha: float, length: int, draft_step: float, rounds: int = 10_000) -> Profile:
    rng = np.random.default_rng(3)
    accepted = np.minimum(rng.geometric(1 - alpha, rounds) - 1, length)
    parents = [list(range(-1, length - 1))] * rounds
    return Profile(
        "chain", parents, [list(range(count)) for count in accepted], {1: RoundSeconds(0.0, draft_step, 0.0)}
    )


def flat(rows: int) -> PassTimes:
    return PassTimes(0, {1: {1: 2.0, rows: 2.0}})


@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_on_chains_and_flat_passes_it_is_theorem_3_8(gamma: int) -> None:
    alpha, c = 0.7, 0.1
    expected = theory.walltime_improvement(alpha, gamma, c)
    drafter = chain(alpha, 15, draft_step=2.0 * c)
    for nodes, length in ((gamma, 15), (15, gamma)):
        found = forecast(drafter, PLAIN, flat(64), 1, nodes, length)
        assert found.speedup == pytest.approx(expected, rel=0.01)
        assert found.tokens_per_second == pytest.approx(found.tokens / found.seconds)


def planned(profile: Profile, passes: PassTimes) -> Plan:
    plan = Plan([passes], [PLAIN, profile])
    for each in plan.profiles:
        plan.forecasts += [forecast(each, PLAIN, passes, 1, *shape) for shape in _shapes(each)]
    return plan


@pytest.mark.parametrize(("alpha", "c"), [(0.8, 0.05), (0.6, 0.1), (0.5, 0.3), (0.3, 0.4)])
def test_the_best_draft_length_is_that_of_the_paper(alpha: float, c: float) -> None:
    best = planned(chain(alpha, 15, draft_step=2.0 * c), flat(64)).best(1)
    gamma = theory.best_gamma(alpha, c)
    assert best.length == gamma or gamma not in LENGTHS
    assert best.speedup == pytest.approx(theory.walltime_improvement(alpha, gamma, c), rel=0.01)


def test_rounds_that_are_run_at_once_lack_what_python_adds_to_a_pass() -> None:
    passes = PassTimes(0, {1: {1: 2.0, 3: 3.0}, 2: {1: 4.0, 3: 5.0}}, {1: 1.5})
    assert [float(passes.of(1, np.array(rows), True)) for rows in (1.0, 2.0, 3.0)] == [1.5, 2.0, 2.5]
    assert [float(passes.of(batch, np.array(1.0), True)) for batch in (1, 2)] == [1.5, 4.0]
    assert float(passes.of(1, np.array(1.0))) == 2.0
    at_once, alone = RoundSeconds(0.0, 0.0, 0.25, at_once=True), RoundSeconds(0.0, 0.0, 0.25)
    plain, drafter = Profile("none", [[]], [[]], {1: at_once}), Profile("chain", [[-1, 0]], [[0, 1]], {1: alone})
    found = forecast(drafter, plain, passes, 1, 2, 2)
    assert found.seconds == pytest.approx(3.25)
    assert found.speedup == pytest.approx(3 / 3.25 * 1.75)


def test_dear_rows_make_plain_decoding_best() -> None:
    passes = PassTimes(0, {1: {1: 1.0, 64: 64.0}})
    assert planned(chain(0.5, 7, 0.0), passes).best(1).nodes == 0


def test_trees_cut_to_any_length_and_size_bring_what_sequoias_program_says() -> None:
    """Every round that can be, once: at each node the first guess holds in 2 of 4 cases, the second in 1."""
    levels = 3
    tree = best_first_tree(np.array([[0.5, 0.25]] * levels), 14)
    children = {(parent, rank): node for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True))}
    rounds = []
    for outcome in product((0, 0, 1, None), repeat=levels):
        path: list[int] = []
        for rank in outcome:
            if rank is None:
                break
            path.append(children[path[-1] if path else -1, rank])
        rounds.append(path)
    drafter = Profile("tree", [tree.parents.tolist()] * len(rounds), rounds, {1: FREE})
    expected = sequoia_tokens([0.5, 0.25], 14, levels)
    for length, nodes in product(range(1, levels + 1), range(1, 15)):
        _, tokens = drafter.cut(nodes, length)
        assert tokens == pytest.approx(expected[length, nodes])


def test_passages_that_are_guessed_whole_take_as_many_rounds_as_smaller_drafts_need() -> None:
    chain = list(range(-1, 5))
    drafter = Profile("copies", [chain, [-1], []], [list(range(6)), [], []], {})
    kept, tokens = drafter.cut(15, 6)
    assert (kept.tolist(), tokens) == ([6.0, 1.0, 0.0], (7 + 1 + 1) / 3)
    # 3 of the 7 tokens, 3 more, and of the draft after those nothing is known.
    kept, tokens = drafter.cut(15, 2)
    assert (kept.tolist(), tokens) == ([2.0, 2.0, 1.0, 0.0], (3 + 3 + 1 + 1) / 4)
    assert drafter.cut(2, 6)[1] == tokens
    # 2, 2 and 2, where a guess was left for each.
    assert drafter.cut(15, 1)[1] == (2 + 2 + 2 + 1 + 1) / 5
    assert drafter.cut(0, 6)[1] == 1.0


def test_what_is_played_again_lies_below_the_accepted_nodes() -> None:
    # 0 and 2 were accepted; 1 is another child of the root, 3 one of 0, 4 one of 2.
    tree = Profile("tree", [[-1, -1, 0, 0, 2]], [[0, 2]], {})
    kept, tokens = tree.cut(1, 1)
    assert (kept.tolist(), tokens) == ([1.0, 1.0], 1.5)  # 0 held; after 2, which the target said, 4 did not
    kept, tokens = tree.cut(5, 1)
    assert (kept.tolist(), tokens) == ([2.0, 1.0], 1.5)


def test_levels_are_paid_for_though_a_smaller_tree_keeps_none_of_them() -> None:
    # Two rounds: nodes 0 and 2 accepted, then none; node 2 lies on the second level.
    tree = Profile("tree", [[-1, -1, 0]] * 2, [[0, 2], []], {2: RoundSeconds(0.5, 0.25, 0.125)})
    passes = PassTimes(0, {2: {1: 1.0, 4: 4.0}})
    assert [tree.cut(nodes, 2)[1] for nodes in range(4)] == [1.0, 1.5, 1.5, 2.0]
    assert [tree.cut(nodes, 1)[1] for nodes in range(4)] == [1.0, 1.5, 1.5, 1.5]
    for length in (1, 2):
        found = forecast(tree, PLAIN, passes, 2, 2, length)
        assert found.seconds == pytest.approx(3.0 + 0.5 + 0.25 * length + 0.125)
        assert found.speedup == pytest.approx(1.5 / found.seconds)


def test_what_follows_from_a_tree_is_paid_for_by_the_node() -> None:
    tree = Profile("tree", [[-1, 0]], [[0]], {2: RoundSeconds(0.0, 0.0, 0.5, other_step=0.25)})
    found = forecast(tree, PLAIN, PassTimes(0, {2: {1: 1.0, 3: 1.0}}), 2, 2, 2)
    assert found.seconds == pytest.approx(1.0 + 0.5 + 2 * 2 * 0.25)


def test_lines_go_through_the_medians_of_small_and_large_sizes() -> None:
    timed = [(1, 1.5), (1, 9.0), (1, 1.5), (5, 3.5), (5, 3.5), (5, 0.0)]
    base, step = line(timed)
    assert (base, step) == pytest.approx((1.0, 0.5))
    assert line([(0, 2.0), (0, 2.0)]) == (2.0, 0.0)
    assert line([]) == (0.0, 0.0)


class Ticking:
    """A clock of which every look takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Chains:
    """Guesses chains as long as they may be."""

    needs = TargetSignals()

    def begin(self, sequence) -> None: ...

    def observe(self, outcomes) -> None: ...

    def end(self, sequence_id) -> None: ...

    def propose(self, sequences, budgets) -> list[DraftTree]:
        return [DraftTree.chain(range(budget.depth)) for budget in budgets]


def test_a_profile_tells_draft_from_bookkeeping_and_pauses_between_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart_lab.plan.watching.time.perf_counter", Ticking())
    watching = Watching(Chains())
    for _ in range(2):
        for _ in range(5):
            (tree,) = watching.propose([None], [DraftBudget(3, 3)])
            rows = np.arange(1 + len(tree), dtype=np.int32)
            watching.observe([RoundOutcome(None, 1, rows, tree, (), (7,), pass_seconds=0.25)])
        watching.pause()
    assert [seconds for _, seconds in watching.timed[1]] == [1.0] * 10
    # A second from draft to observation, less the pass, and one from there to the next draft; none across the pause.
    assert [rest for _, rest in watching.others[1, False]] == [1.75] * 8
    assert {levels for levels, _ in watching.timed[1]} == {1, 3}
    costs = watching.profile("chains").seconds[1]
    assert (costs.rows, costs.target) == (4.0, 0.25)


def test_what_a_batch_spends_on_a_round_is_told_from_what_a_sequence_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart_lab.plan.watching.time.perf_counter", Ticking())
    watching = Watching(Chains())
    budgets = [DraftBudget(3, 3)] * 2
    for reads in (False, True, False):
        trees = watching.propose([None, None], budgets)
        outcomes = [RoundOutcome(None, 1, np.arange(4, dtype=np.int32), tree, (), (7,), 0.25) for tree in trees]
        prompt = RoundOutcome(None, 0, np.arange(9, dtype=np.int32), DraftTree.empty(), pass_seconds=0.25)
        watching.observe([*outcomes, prompt] if reads else outcomes)
    assert [seconds for _, seconds in watching.timed[2]] == [1.0] * 3
    # The first one follows nothing, and a pass that reads a prompt is another matter.
    assert len(watching.others[2, False]) == 1
    assert watching.profile("chains").accepted == []


def test_the_deepest_of_several_trees_decides_how_many_levels_are_drafted() -> None:
    tree = Profile("tree", [[-1], [-1, 0], [-1, 0, 1], []], [[]] * 4, {})
    assert tree.deepest(1, 9) == pytest.approx(1.5)
    assert tree.deepest(1, 2) == pytest.approx(1.25)
    pairs = [max(a, b) for a, b in product(range(4), repeat=2)]
    assert tree.deepest(2, 9) == pytest.approx(sum(pairs) / 16)
    assert Profile("none", [], [], {}).deepest(2, 9) == 0


def test_batches_that_never_decoded_together_cost_what_their_sequences_do_alone() -> None:
    alone = Profile("tree", [], [], {1: RoundSeconds(1.0, 0.5, 0.25, 0.125)})
    assert alone.costs(4) == RoundSeconds(4.0, 2.0, 1.0, 0.125)
    assert Profile("tree", [], [], {}).costs(4) == RoundSeconds(0.0, 0.0, 0.0)


def test_a_batch_is_full_in_every_round_that_counts() -> None:
    bench = Workbench(ToyBackend(VOCAB, repeating_logits(VOCAB, [1, 2, 3])), max_context=200, max_sequences=3)
    sequences = [
        bench.sequence([1, 2, 3], SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
        for tokens in (4, 12, 6, 9, 5)
    ]
    engine = bench.open(Contender.parse("none"))
    rounds = list(bench.full_rounds(engine, sequences, 3))
    assert all((number, tokens) == (1, 3) for number, tokens, _ in rounds)
    # As long as three are left: the prompts' passes, of which each says a first token, do not count.
    assert sum(each.finished for each in sequences[:2]) == 2
    assert 3 * len(rounds) < sum(each.num_output for each in sequences)
    assert engine.idle
    stopped = bench.full_rounds(engine, [bench.sequence([1, 2], SamplingParams(temperature=0, max_tokens=50))], 1)
    next(stopped)
    stopped.close()
    assert engine.idle
    assert list(bench.full_rounds(engine, [], 2)) == []


def test_a_profile_times_the_batches_that_are_asked_for() -> None:
    bench = Workbench(ToyBackend(VOCAB, repeating_logits(VOCAB, [1, 2, 3])), max_context=200, max_sequences=4)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    found = profile(bench, Contender.parse("ngram"), [[1, 2, 3] * 4] * 3, params, [1, 4])
    assert sorted(found.seconds) == [1, 4]
    assert all(costs.other > 0 for costs in found.seconds.values())
    assert bench.runner.cache.num_free_tokens == bench.runner.cache.allocator.num_blocks * 32


def test_the_report_says_what_was_measured_and_predicted() -> None:
    passes = PassTimes(32, {1: {1: 1.0, 64: 2.0}})
    plan = planned(replace(chain(0.8, 7, 0.01, rounds=100), name="ngram"), passes)
    plain, best = plan.best(1, "none"), plan.best(1)
    plan.checked = [Checked(plain, 0.8, 1.0, 6), Checked(best, 1.6, 2.0, 6)]
    result = to_json(plan, {"settings": {"seed": 0}})
    (recommended,) = result["recommended"]
    assert (recommended["length"], recommended["nodes"]) == (best.length, best.nodes)
    assert recommended["options"] == f"--drafter ngram:draft_tokens={best.length}"
    assert result["checked"][0]["options"] == "--drafter none"
    assert result["checked"][0]["error"] == pytest.approx(1.0 / 0.8 - 1)
    assert result["checked"][0]["speedup_error"] == pytest.approx(0.0)
    assert result["checked"][1]["speedup_error"] == pytest.approx(best.speedup * 0.8 / 1.6 - 1)
    shown = exhibits(plan)
    assert [item.title for item in shown[:2]] == ["Recommended", "Prediction and measurement"]
    assert "Target pass" in [item.title for item in shown]
    (lengths,) = [item for item in shown if item.title.startswith("Speed-up by draft length")]
    assert isinstance(lengths, Table)
    assert [row[0] for row in lengths.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert max(row[1] for row in lengths.rows) == best.speedup


VOCAB, ALPHA = 50, 0.7


@dataclass(frozen=True)
class SeerOptions:
    draft_tokens: int = 3


class Seer:
    """Knows what a toy target says next, and is mistaken at a known part of the places of a text."""

    Options = SeerOptions
    needs = TargetSignals()
    asked: ClassVar[list[int]] = []

    def __init__(self, context: DraftContext, options: SeerOptions) -> None:
        self._most = options.draft_tokens

    def begin(self, sequence: SequenceView) -> None: ...

    def propose(self, sequences: Sequence[SequenceView], budgets: Sequence[DraftBudget]) -> list[DraftTree]:
        (sequence,), (budget,) = sequences, budgets
        length = min(self._most, budget.depth, budget.nodes)
        self.asked.append(length)
        guesses, last = [], sequence.tokens[-1]
        for place in range(len(sequence.tokens), len(sequence.tokens) + length):
            wrong = np.random.default_rng([sequence.id, place]).random() > ALPHA
            last = (last + 1) % VOCAB
            guesses.append((last + wrong) % VOCAB)
        return [DraftTree.chain(guesses)]

    def observe(self, outcomes: Sequence[RoundOutcome]) -> None: ...

    def end(self, sequence_id: int) -> None: ...


@pytest.fixture
def seer(monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setitem(registry._own(), "seer", Method("seer", "", "", f"{__name__}:Seer"))
    return Workbench(ToyBackend(VOCAB, repeating_logits(VOCAB, range(VOCAB))), max_context=900)


@pytest.mark.thorough
def test_shorter_drafts_bring_what_was_predicted_from_long_ones(seer: Workbench) -> None:
    params, prompts = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True), [[1, 2, 3]] * 3
    found = profile(seer, freely(Contender.parse("seer")), prompts, params)
    assert found.longest == MOST_TOKENS
    for length in (1, 2, 4, 8):
        _, predicted = found.cut(MOST_NODES, length)
        limits = limits_of("seer", length, MOST_NODES, cuts_levels=True, cuts_nodes=False)
        sequences = [seer.sequence(prompt, params, limits.speculation) for prompt in prompts]
        for sequence in sequences:
            seer.decode(seer.open(Contender.parse(limits.drafter)), sequence)
        tokens, rounds = (sum(getattr(each.stats, name) for each in sequences) for name in ("tokens", "rounds"))
        assert predicted == pytest.approx(theory.expected_tokens(ALPHA, length), rel=0.06)
        assert tokens / rounds == pytest.approx(predicted, rel=0.06)


def test_what_is_checked_is_what_is_recommended(seer: Workbench) -> None:
    params, prompts = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), [[1, 2, 3], [4, 5, 6]]
    plan = make_plan(seer, [Contender.parse("none"), freely(Contender.parse("seer"))], prompts, params, [1], 1)
    passes = PassTimes(0, {1: {1: 1.0, 64: 1.0}})
    found = replace(plan.profiles[1], seconds={1: RoundSeconds(0.0, 0.2, 0.0)})
    plan.profiles = [PLAIN, found]
    plan.forecasts = [forecast(each, PLAIN, passes, 1, *shape) for each in plan.profiles for shape in _shapes(each)]
    best = plan.best(1)
    assert 1 < best.length < MOST_TOKENS
    Seer.asked.clear()
    check(seer, plan, prompts, params)
    assert max(Seer.asked) == best.length
    assert [(each.expected.drafter, each.expected.length) for each in plan.checked] == [
        ("none", 0),
        ("seer", best.length),
    ]
    assert all(each.measured > 0 and each.texts == 2 for each in plan.checked)


def test_a_context_without_room_for_what_is_timed_is_refused() -> None:
    bench = Workbench(ToyBackend(VOCAB, repeating_logits(VOCAB, [1, 2, 3])), max_context=64)
    with pytest.raises(ConfigError, match="context of 64 is too short"):
        make_plan(bench, [Contender.parse("none")], [[1, 2]], SamplingParams(temperature=0, max_tokens=4), [1], 1)


def test_what_is_recommended_for_batches_is_checked_in_batches() -> None:
    bench = Workbench(ToyBackend(VOCAB, repeating_logits(VOCAB, [1, 2, 3])), max_context=200, max_sequences=4)
    params, prompts = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True), [[1, 2, 3] * 4] * 5
    listed = [freely(Contender.parse(name)) for name in ("none", "ngram", "suffix")]
    plan = make_plan(bench, listed, prompts, params, [1, 4], 1)
    free = PassTimes(0, {1: {1: 1.0, 64: 1.0}, 4: {1: 1.0, 16: 1.0}})
    plan.forecasts = [
        forecast(each, plan.profiles[0], free, batch, *shape)
        for batch in (1, 4)
        for each in plan.profiles
        for shape in _shapes(each)
        if batch * (shape[0] + 1) <= 64
    ]
    check(bench, plan, prompts, params)
    tried = [(each.expected.batch, each.expected.drafter, each.texts) for each in plan.checked]
    assert tried == [(1, "none", 5), (1, "ngram", 5), (1, "suffix", 5), (4, "none", 20), (4, plan.best(4).drafter, 20)]
    assert all(each.expected.tokens > 2 for each in plan.checked if each.expected.nodes)
    assert bench.runner.cache.num_free_tokens == bench.runner.cache.allocator.num_blocks * 32


@pytest.mark.parametrize(
    ("temperature", "finds_best", "wanted"), [(0, True, "best"), (0, False, "all"), (1, True, "all")]
)
def test_passes_are_asked_for_what_such_requests_look_at(monkeypatch, seer, temperature, finds_best, wanted) -> None:
    asked = set()
    forward = seer.runner.forward

    def noted(spans):
        asked.update(span.logits for span in spans)
        return forward([replace(span, logits="all") for span in spans])

    monkeypatch.setattr(seer.backend, "finds_best", finds_best, raising=False)
    monkeypatch.setattr(seer.runner, "forward", noted)
    times = measure_passes(seer, 4, [1, 2], 1, SamplingParams(temperature=temperature, seed=0))
    assert asked == {"none", wanted}
    assert list(times.seconds) == [1, 2]


class Levels(Chains):
    """Two guesses, and a third one below the second; says how sure it is of them."""

    grade_rates = (0.1, 0.8)

    def propose(self, sequences, budgets) -> list[DraftTree]:
        grades = np.array([0, 1, 1], np.int32)
        return [DraftTree(np.array([4, 5, 6], np.int32), np.array([-1, -1, 1], np.int32), grades=grades)]


def test_of_trees_told_level_by_level_the_surest_nodes_are_kept() -> None:
    watching = Watching(Levels())
    (tree,) = watching.propose([None], [DraftBudget(3, 3)])
    watching.observe([RoundOutcome(None, 1, np.arange(4, dtype=np.int32), tree, (1, 2), (5, 6, 7))])
    found = watching.profile("levels")
    assert (found.parents, found.accepted) == ([[-1, 0, -1]], [[0, 1]])
    assert [found.cut(nodes, 2)[1] for nodes in range(4)] == [1.0, 2.0, 3.0, 3.0]
