from __future__ import annotations

import heapq
from pathlib import Path

import pytest
from drafting_toys import ToySequence, read_prompt, verify_greedily
from hypothesis import given
from hypothesis import strategies as st
from toys import ToyBackend, hashed_logits, run_all, toy_engine, toy_sequence

from headstart.drafting.base import DraftBudget, SequenceView, SpeculationParams
from headstart.drafting.context import DraftContext
from headstart.drafting.methods.suffix.drafter import SuffixDrafter, SuffixOptions
from headstart.drafting.text_store import TextStore
from headstart.engine.sequence import Sequence
from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.params import SamplingParams

BUDGET = DraftBudget(9, 9)


def grow(tokens: list[int], ends: list[int], nodes: int, depth: int, floor: float) -> tuple[float, list, list]:
    """Best-first tree of what followed the places ``ends``, counting places one by one."""
    heap: list = []
    pushed = 0

    def push(ends: list[int], probability: float, parent: int, level: int) -> None:
        nonlocal pushed
        followed = [end for end in ends if end < len(tokens)]
        groups: dict[int, list[int]] = {}
        for end in followed:
            groups.setdefault(tokens[end], []).append(end + 1)
        for token, places in sorted(groups.items(), key=lambda group: (-len(group[1]), -group[1][-1])):
            if len(places) >= floor * len(followed) / probability:
                entry = (-probability * (len(places) / len(followed)), pushed, token, places, parent, level)
                heapq.heappush(heap, entry)
                pushed += 1

    drafted: list[int] = []
    parents: list[int] = []
    score = 0.0
    push(ends, 1.0, ROOT, 1)
    while heap and len(drafted) < nodes:
        negative, _, token, places, parent, level = heapq.heappop(heap)
        score -= negative
        drafted.append(token)
        parents.append(parent)
        if level < depth:
            push(places, -negative, len(drafted) - 1, level + 1)
    return score, drafted, parents


def reference(tokens: list[int], options: SuffixOptions, budget: DraftBudget) -> tuple[list[int], list[int]]:
    """Every match length tried, longest first."""
    depth = min(budget.depth, budget.nodes, options.tree_nodes, options.max_depth - 1)
    best: tuple[float, list, list] = (0.0, [], [])
    for length in range(min(options.max_depth - depth, len(tokens)), 0, -1):
        ends = [end for end in range(length, len(tokens) + 1) if tokens[end - length : end] == tokens[-length:]]
        nodes = min(budget.nodes, options.tree_nodes, int(length * options.factor + options.offset))
        grown = grow(tokens, ends, nodes, depth, options.min_probability)
        if grown[0] > best[0]:
            best = grown
    return best[1], best[2]


@pytest.mark.parametrize("budget", [DraftBudget(9, 9), DraftBudget(30, 3), DraftBudget(1, 1)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        SuffixOptions(),
        SuffixOptions(factor=1.0, offset=0.0),
        SuffixOptions(factor=0.5, offset=1.0, min_probability=0.3),
        SuffixOptions(max_depth=4, tree_nodes=30, min_probability=0.01),
    ],
    ids=str,
)
@given(tokens=st.lists(st.integers(0, 2), min_size=8, max_size=50))
def test_the_tree_equals_a_brute_force_count(options: SuffixOptions, budget: DraftBudget, tokens: list[int]) -> None:
    drafter = SuffixDrafter(DraftContext(3), options)
    sequence = ToySequence(1, tokens)
    drafter.begin(sequence)
    tree = drafter.propose([sequence], [budget])[0]
    assert (tree.tokens.tolist(), tree.parents.tolist()) == reference(tokens, options, budget)


def propose(drafter: SuffixDrafter, tokens: list[int], number: int = 1) -> DraftTree:
    sequence = ToySequence(number, tokens)
    drafter.begin(sequence)
    tree = drafter.propose([sequence], [BUDGET])[0]
    drafter.end(number)
    return tree


def test_a_unique_match_is_copied_as_far_as_the_budget_goes() -> None:
    text = list(range(20))
    assert propose(SuffixDrafter(DraftContext(50), SuffixOptions()), [*text, 30, 3, 4, 5]).tokens.tolist() == [
        *range(6, 15)
    ]


def test_a_longer_match_may_propose_more_nodes() -> None:
    sizes = []
    for matched in (1, 2, 4):
        drafter = SuffixDrafter(DraftContext(50), SuffixOptions(factor=1.0, offset=0.0))
        sizes.append(len(propose(drafter, [*range(20), 30, *range(5 - matched, 5)])))
    assert sizes == [1, 2, 4]


def test_the_longer_of_two_matches_with_equal_scores_wins() -> None:
    # After 1 2 stood 5 and 6, 6 the later; after 2 stood each twice, 5 the later.
    text = [1, 2, 5, 30, 1, 2, 6, 31, 4, 2, 6, 32, 3, 2, 5, 33, 1, 2]
    assert propose(SuffixDrafter(DraftContext(50), SuffixOptions(tree_nodes=1)), text).tokens.tolist() == [6]


def test_branches_come_in_order_of_their_frequency() -> None:
    # After 1 follow 2, 2, 3; after 2 follow 7 and 8.
    tree = propose(SuffixDrafter(DraftContext(50), SuffixOptions()), [1, 2, 7, 1, 2, 8, 1, 3, 9, 1])
    first_level = [int(tree.tokens[node]) for node in tree.children[ROOT]]
    assert first_level == [2, 3]
    assert {int(tree.tokens[node]) for node in tree.children[tree.child_with(ROOT, 2)]} == {7, 8}


def speak(drafter: SuffixDrafter, number: int, output: list[int]) -> None:
    """A request that says ``output`` token by token and ends."""
    sequence = ToySequence(number, [0])
    drafter.begin(sequence)
    drafter.observe([read_prompt(sequence)])
    for token in output:
        drafter.observe([verify_greedily(sequence, DraftTree.empty(), lambda _, token=token: [token], 0)])
    drafter.end(number)


def test_outputs_of_earlier_requests_are_not_shared_unless_asked_for() -> None:
    for shared_tokens, expected in ((0, []), (100, [13, 14])):
        drafter = SuffixDrafter(DraftContext(50), SuffixOptions(shared_tokens=shared_tokens))
        speak(drafter, 1, [11, 12, 13, 14])
        assert propose(drafter, [5, 11, 12], number=2).tokens.tolist() == expected


def test_prompts_are_never_shared() -> None:
    drafter = SuffixDrafter(DraftContext(50), SuffixOptions(shared_tokens=100))
    drafter.begin(ToySequence(1, [11, 12, 13, 14]))
    drafter.end(1)
    assert len(propose(drafter, [5, 11, 12], number=2)) == 0


def test_outputs_are_shared_within_a_scope_only() -> None:
    def tenant(sequence: SequenceView) -> str:
        return "odd" if sequence.id % 2 else "even"

    drafter = SuffixDrafter(DraftContext(50, scope_of=tenant), SuffixOptions(shared_tokens=100))
    speak(drafter, 1, [11, 12, 13, 14])
    assert len(propose(drafter, [5, 11, 12], number=2)) == 0
    assert propose(drafter, [5, 11, 12], number=3).tokens.tolist() == [13, 14]


def test_no_guess_spans_two_requests() -> None:
    drafter = SuffixDrafter(DraftContext(50), SuffixOptions(shared_tokens=100))
    speak(drafter, 1, [11, 12])
    speak(drafter, 2, [13, 14])
    assert len(propose(drafter, [5, 12], number=9)) == 0


def test_the_oldest_outputs_are_forgotten_first() -> None:
    drafter = SuffixDrafter(DraftContext(50), SuffixOptions(shared_tokens=12))
    speak(drafter, 1, [11, 12, 13, 14])
    speak(drafter, 2, [21, 22, 23, 24])
    assert propose(drafter, [5, 11, 12], number=9).tokens.tolist() == [13, 14]
    speak(drafter, 3, [31, 32, 33, 34])
    assert len(propose(drafter, [5, 11, 12], number=9)) == 0
    assert propose(drafter, [5, 31, 32], number=9).tokens.tolist() == [33, 34]


def test_the_sequence_itself_wins_ties_with_other_requests() -> None:
    drafter = SuffixDrafter(DraftContext(50), SuffixOptions(shared_tokens=100, tree_nodes=1))
    speak(drafter, 1, [11, 12, 13])
    assert propose(drafter, [11, 12, 14, 11, 12], number=2).tokens.tolist() == [14]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["suffix", "auto"])
def test_a_predicted_output_is_guessed_from_and_changes_nothing_else(name: str, temperature: float) -> None:
    # A model that never repeats itself, so that nothing else helps.
    backend = ToyBackend(50, hashed_logits(50, seed=2))
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=40)

    def decode(prediction: tuple[int, ...]) -> Sequence:
        engine = toy_engine(backend, name)
        wishes = SpeculationParams(prediction=prediction)
        sequence = toy_sequence(engine, [1, 2, 3], params=params, speculation=wishes)
        run_all(engine, [sequence])
        return sequence

    plain = decode(())
    edited = [*plain.output[:20], 7, 7, 7, *plain.output[24:]]
    for prediction, fewer in ((plain.output, 3), (edited, 2)):
        predicted = decode(tuple(prediction))
        assert predicted.output == plain.output
        if name == "suffix":  # How much the planner guesses depends on clocks: see test_auto.
            assert predicted.stats.rounds * fewer < plain.stats.rounds


def test_no_guess_spans_prediction_and_prompt() -> None:
    drafter = SuffixDrafter(DraftContext(50), SuffixOptions())
    sequence = ToySequence(1, [5, 12])
    sequence.speculation = SpeculationParams(prediction=(11, 12))
    drafter.begin(sequence)
    assert len(drafter.propose([sequence], [BUDGET])[0]) == 0


@pytest.mark.parametrize(
    "options",
    [{"tree_nodes": 0}, {"max_depth": 1}, {"factor": -1.0}, {"min_probability": 0.0}, {"shared_tokens": -1}],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SuffixOptions(**options)


def test_texts_that_were_given_are_guessed_from_in_their_scope(tmp_path: Path) -> None:
    def tenant(sequence: SequenceView) -> str:
        return "odd" if sequence.id % 2 else "even"

    for texts in (TextStore(), TextStore(tmp_path)):
        context = DraftContext(50, scope_of=tenant, texts=texts)
        drafter = SuffixDrafter(context, SuffixOptions())
        assert len(propose(drafter, [5, 11, 12], number=1)) == 0
        texts.add_all("odd", [[11, 12, 13, 14]])
        assert propose(drafter, [5, 11, 12], number=3).tokens.tolist() == [13, 14]
        assert len(propose(drafter, [5, 11, 12], number=4)) == 0
        # What requests say is kept where there is a place for it.
        speak(drafter, 5, [21, 22, 23])
        kept = propose(drafter, [5, 21, 22], number=7).tokens.tolist()
        assert kept == ([23] if texts.keeps_outputs else [])
    texts.close()
    again = SuffixDrafter(DraftContext(50, scope_of=tenant, texts=TextStore(tmp_path)), SuffixOptions())
    assert propose(again, [5, 21, 22], number=7).tokens.tolist() == [23]
    assert len(propose(again, [5, 21, 22], number=8)) == 0
