"""Which row pairs with which token and position, after prompts, acceptances, rejections and pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence, shape
from head_toys import HIDDEN, head_context, head_drafter, random_eagle, state_after, with_states

from headstart.drafting.base import DraftBudget, RoundOutcome
from headstart.drafting.head_trees.head_drafter import HeadDrafter
from headstart.drafting.head_trees.head_source import ConfidenceOptions
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.eagle.drafter import Eagle3Drafter
from headstart.drafting.registry import create_drafter
from headstart.errors import CheckpointError, ConfigError
from headstart.passes.batch import TapStates
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.sampling.params import SamplingParams
from headstart_train.files.heads import save_head

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5]
BUDGET = DraftBudget(nodes=9, depth=3)


def new_drafter(name: str = "eagle3", **options: object) -> HeadDrafter:
    given = {"width": 2, "draft_tokens": 3, "min_probability": 0.0, **options}
    return head_drafter(name, VOCAB, given).drafter  # type: ignore[attr-defined, no-any-return]


def read(drafter: HeadDrafter, sequence: ToySequence, first: int, count: int) -> None:
    chunk = np.asarray(sequence.tokens[first : first + count], dtype=np.int32)
    drafter.observe([with_states(RoundOutcome(sequence, first, chunk, DraftTree.empty()), drafter.needs.taps)])


def begin(drafter: HeadDrafter, tokens: Sequence[int], chunks: Sequence[int] | None = None) -> ToySequence:
    sequence = ToySequence(1, list(tokens))
    drafter.begin(sequence)
    first = 0
    for count in chunks or [len(tokens) - 1]:
        read(drafter, sequence, first, count)
        first += count
    return sequence


def commit(drafter: HeadDrafter, sequence: ToySequence, tree: DraftTree, accepted: Sequence[int], last: int) -> None:
    """Verify: these nodes, then the correction or bonus."""
    root = len(sequence.tokens) - 1
    rows = np.asarray([sequence.tokens[-1], *tree.tokens.tolist()], dtype=np.int32)
    committed = (*(int(tree.tokens[node]) for node in accepted), last)
    sequence.tokens.extend(committed)
    outcome = RoundOutcome(sequence, root, rows, tree, tuple(accepted), committed)
    drafter.observe([with_states(outcome, drafter.needs.taps)])


class Recorder:
    """What the head is given, step by step: (token, position, features) of every row."""

    def __init__(self, drafter: HeadDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[list[tuple[int, int]]] = []
        self.true_states: list[torch.Tensor] = []
        running: Any = drafter.reader.running
        step, read = running.step, running.read

        def recorded_step(tokens, states, parts):  # type: ignore[no-untyped-def]
            self.record(tokens, parts)
            return step(tokens, states, parts)

        def recorded_read(tokens, features, parts):  # type: ignore[no-untyped-def]
            self.record(tokens, parts)
            self.true_states += list(features)
            return read(tokens, features, parts)

        monkeypatch.setattr(running, "step", recorded_step)
        monkeypatch.setattr(running, "read", recorded_read)

    def record(self, tokens: np.ndarray, parts: Sequence[DraftRows]) -> None:  # type: ignore[type-arg]
        positions = [position for part in parts for position in part.positions]
        self.steps.append(list(zip(tokens.tolist(), positions, strict=True)))


def true_states(drafter: HeadDrafter, tokens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    return torch.stack(
        [torch.cat([state_after(tokens[: i + 1], tap) for tap in drafter.needs.taps]) for i in positions]
    )


@pytest.mark.parametrize("chunks", [[4], [1, 3], [2, 1, 1]])
def test_rows_of_the_prompt(chunks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt t0..t3, root t4: row i is (state of i, token i + 1) at position i; the next row of the draft at 4."""
    drafter = new_drafter()
    recorder = Recorder(drafter, monkeypatch)
    sequence = begin(drafter, PROMPT, chunks)
    tree = drafter.propose([sequence], [BUDGET])[0]
    assert recorder.steps[0] == [(1, 0), (4, 1), (1, 2), (5, 3)]
    assert torch.equal(torch.stack(recorder.true_states), true_states(drafter, PROMPT, range(4)))
    first_level = tree.tokens[tree.parents == ROOT].tolist()
    assert [position for _, position in recorder.steps[1]] == [4, 4]
    assert {token for token, _ in recorder.steps[1]} <= set(first_level) | set(range(VOCAB))
    assert [position for _, position in recorder.steps[2]] == [5, 5]
    assert len(recorder.steps) == 3


def test_rows_after_a_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """t5 accepted, t6 corrected: the draft's rows go, (state 4, t5) at 4 and (state 5, t6) at 5 come."""
    drafter = new_drafter()
    sequence = begin(drafter, PROMPT)
    tree = drafter.propose([sequence], [BUDGET])[0]
    recorder = Recorder(drafter, monkeypatch)
    accepted = tree.children[ROOT][-1]
    t5 = int(tree.tokens[accepted])
    commit(drafter, sequence, tree, [accepted], 10)
    drafter.propose([sequence], [BUDGET])
    assert recorder.steps[0] == [(t5, 4), (10, 5)]
    assert torch.equal(torch.stack(recorder.true_states), true_states(drafter, [*PROMPT, t5], [4, 5]))
    assert {position for _, position in recorder.steps[1]} == {6}
    assert drafter.reader.readings[1].cache.rows == len(sequence.tokens) - 1


def test_all_rejected_and_all_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = new_drafter()
    sequence = begin(drafter, PROMPT)
    recorder = Recorder(drafter, monkeypatch)
    tree = drafter.propose([sequence], [BUDGET])[0]
    commit(drafter, sequence, tree, [], 10)
    recorder.steps.clear()
    tree = drafter.propose([sequence], [BUDGET])[0]
    assert recorder.steps[0] == [(10, 4)]
    deepest = tree.path_to(int(tree.depths.argmax()))
    commit(drafter, sequence, tree, deepest, 6)
    recorder.steps.clear()
    drafter.propose([sequence], [BUDGET])
    tokens = [int(tree.tokens[node]) for node in deepest]
    assert recorder.steps[0] == list(zip([*tokens, 6], range(5, 5 + len(tokens) + 1), strict=True))


def test_rounds_without_a_draft_are_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    paused, busy = new_drafter(), new_drafter()
    sequences = [begin(drafter, PROMPT) for drafter in (paused, busy)]
    for token in (2, 7, 0):
        assert len(paused.propose([sequences[0]], [DraftBudget(0, 0)])[0]) == 0
        busy.propose([sequences[1]], [BUDGET])
        for drafter, sequence in zip((paused, busy), sequences, strict=True):
            commit(drafter, sequence, DraftTree.empty(), [], token)
    recorder = Recorder(paused, monkeypatch)
    trees = [d.propose([s], [BUDGET])[0] for d, s in zip((paused, busy), sequences, strict=True)]
    assert shape(trees[0]) == shape(trees[1])
    assert recorder.steps[0][-3:] == [(2, 4), (7, 5), (0, 6)]


def test_behind_missing_states_it_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in a cache already, or was decoded while it did not listen, brings no states. Positions stay those of
    the text."""
    sequence, drafter = ToySequence(1, list(PROMPT)), new_drafter()
    drafter.begin(sequence)
    read(drafter, sequence, 2, 2)
    recorder = Recorder(drafter, monkeypatch)
    (tree,) = drafter.propose([sequence], [BUDGET])
    assert recorder.steps[0] == [(PROMPT[3], 2), (PROMPT[4], 3)]
    assert len(tree) > 0
    interrupted = new_drafter()
    begin(interrupted, PROMPT[:2])
    read(interrupted, sequence, 2, 2)
    (other,) = interrupted.propose([sequence], [BUDGET])
    assert other.tokens.tolist() == tree.tokens.tolist()


def test_contexts_far_beyond_the_training_length(tmp_path: Path) -> None:
    save_head(random_eagle(VOCAB, max_positions=16), tmp_path)
    options = {"min_probability": 0.0, "window": 0}
    drafter = head_drafter("eagle3", VOCAB, options, tmp_path).drafter  # type: ignore[attr-defined]
    tokens = np.random.default_rng(0).integers(0, VOCAB, 1500).tolist()
    long = drafter.propose([begin(drafter, tokens)], [BUDGET])[0]
    whole = new_drafter(width=6, draft_tokens=5)
    assert shape(whole.propose([begin(whole, tokens, [700, 799])], [BUDGET])[0]) == shape(long)


def test_a_batch_drafts_like_each_alone() -> None:
    prompts = [PROMPT, [2, 7, 1, 8, 2, 8, 1], [5, 5, 5]]
    together = new_drafter()
    sequences = []
    for i, prompt in enumerate(prompts):
        sequence = ToySequence(i, list(prompt))
        together.begin(sequence)
        read(together, sequence, 0, len(prompt) - 1)
        sequences.append(sequence)
    budgets = [BUDGET, DraftBudget(2, 1), DraftBudget(5, 2)]
    trees = together.propose(sequences, budgets)
    for prompt, tree, budget in zip(prompts, trees, budgets, strict=True):
        alone = new_drafter()
        assert shape(alone.propose([begin(alone, prompt)], [budget])[0]) == shape(tree)


def test_guesses_are_the_likeliest_paths_of_the_head() -> None:
    """The tree of one level deeper than wide is checked against every path, computed without a cache."""
    drafter = new_drafter(width=9, draft_tokens=2, tree_nodes=12)
    sequence = begin(drafter, PROMPT)
    sequence.params = SamplingParams(temperature=0)
    tree = drafter.propose([sequence], [DraftBudget(12, 2)])[0]
    head, tables = random_eagle(VOCAB), None
    best = sorted(_scores(head, drafter, PROMPT, tables).items(), key=lambda item: -item[1])[:12]
    found = {tuple(int(tree.tokens[i]) for i in tree.path_to(node)) for node in range(len(tree))}
    assert found == {path for path, _ in best}


def test_the_noise_of_a_sampling_request_leads_its_tree() -> None:
    """Near temperature 0 the tree is the greedy one; far from it the noise of each position chooses alone."""
    trees = []
    for temperature in (0.0, 1e-4, 1e4):
        drafter = new_drafter(width=4, draft_tokens=3, tree_nodes=5)
        sequence = begin(drafter, PROMPT)
        sequence.params = SamplingParams(temperature=temperature)
        trees.append(drafter.propose([sequence], [BUDGET])[0])
    assert shape(trees[0]) == shape(trees[1])
    ids = random_eagle(VOCAB).target_ids
    favourites = [
        int(ids[sequence.noise.position_exponentials(len(PROMPT) + depth, VOCAB, ids).argmin()]) for depth in range(3)
    ]
    deepest = trees[2].path_to(int(trees[2].depths.argmax()))
    assert trees[2].tokens[deepest].tolist() == favourites


def test_heads_of_another_kind_are_refused(tmp_path: Path) -> None:
    save_head(random_eagle(VOCAB, "eagle"), tmp_path)
    with pytest.raises(ConfigError, match=r"another head \(eagle head\) than this drafter runs \(eagle3 head\)"):
        head_drafter("eagle3", VOCAB, {}, tmp_path)
    with pytest.raises(CheckpointError, match="vocabulary"):
        head_drafter("eagle", VOCAB + 1, {}, tmp_path)
    with pytest.raises(ConfigError, match="name the directory"):
        head_drafter("eagle", VOCAB, {"model": ""}, tmp_path)
    for name in ("medusa", "pass"):
        with pytest.raises(ConfigError, match=rf"another head \(eagle head\) than this drafter runs \({name} head\)"):
            head_drafter(name, VOCAB, {}, tmp_path)


def test_a_head_trained_for_other_weights_is_remarked(tmp_path: Path) -> None:
    save_head(random_eagle(VOCAB), tmp_path, {"target": "theirs", "target_digest": "a"})
    options = {"model": str(tmp_path), "precision": "fp32"}
    create_drafter("eagle3", replace(head_context(VOCAB), digest=lambda: "a"), **options)
    with pytest.warns(UserWarning, match="trained for theirs, whose weights are not this target's"):
        create_drafter("eagle3", replace(head_context(VOCAB), digest=lambda: "b"), **options)


def test_nothing_is_guessed_from_states_that_are_no_numbers() -> None:
    drafter = new_drafter()
    sequence = ToySequence(1, list(PROMPT))
    drafter.begin(sequence)
    chunk = np.asarray(PROMPT[:-1], dtype=np.int32)
    hidden = {tap: torch.full((4, HIDDEN), torch.nan) for tap in drafter.needs.taps}
    drafter.observe([RoundOutcome(sequence, 0, chunk, DraftTree.empty(), hidden=TapStates.of(hidden))])
    assert len(drafter.propose([sequence], [BUDGET])[0]) == 0


def _scores(
    head: torch.nn.Module, drafter: Eagle3Drafter, tokens: list[int], _: object
) -> dict[tuple[int, ...], float]:
    """Log-probabilities of all paths of one and two tokens, by the module itself over whole sequences."""
    from head_toys import random_tables

    from headstart_train.decoder.rotary_table import RotaryTable

    embedding = random_tables(VOCAB).embedding
    states = true_states(drafter, tokens, range(len(tokens) - 1))
    ids = head.target_ids.tolist()  # type: ignore[union-attr, operator]
    table = RotaryTable(head.config.rope, torch.float32)  # type: ignore[arg-type, union-attr]

    def outputs(features: torch.Tensor, behind: list[int]) -> torch.Tensor:
        rows = len(behind)

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return mixed[0].transpose(0, 1).flatten(1)

        positions = torch.arange(rows)
        out: torch.Tensor = head(embedding[behind], features, lambda x: table.rotate(x, positions, rows), attend)
        return out

    with torch.no_grad():
        fused = head.fuse(states)  # type: ignore[operator]
        first = outputs(fused, tokens[1:])[-1]
        scores = {}
        for j, log_prob in enumerate(head.logits(first).log_softmax(-1).tolist()):  # type: ignore[operator]
            scores[(ids[j],)] = log_prob
            fed_back = head.feed_back(first)[None]  # type: ignore[operator]
            second = outputs(torch.cat((fused, fed_back)), [*tokens[1:], ids[j]])[-1]
            for k, further in enumerate(head.logits(second).log_softmax(-1).tolist()):  # type: ignore[operator]
                scores[ids[j], ids[k]] = log_prob + further
    return scores


def test_a_draft_ends_where_nothing_is_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is run for guesses that are left out."""
    patient, wary = new_drafter(), new_drafter(min_probability=0.999)
    steps = []
    for drafter in (patient, wary):
        sequence = begin(drafter, PROMPT)
        recorder = Recorder(drafter, monkeypatch)
        tree = drafter.propose([sequence], [BUDGET])[0]
        steps.append((len(recorder.steps), len(tree)))
    assert steps[0][0] == 3
    assert steps[1] == (1, 0)


def test_a_planner_says_how_unlikely_a_path_may_be() -> None:
    """Where no option does; without a planner it is the same for all."""
    kit = head_context(VOCAB).kit  # the drafters' own: what a row costs depends on the processor
    asked, usual = (
        DraftBudget(nodes=9, depth=3, min_probability=0.3),
        ConfidenceOptions().min_probability_of([BUDGET], kit),
    )
    fixed = {least: len(draft_of(new_drafter(min_probability=least), BUDGET)) for least in (0.0, 0.3, usual)}
    assert fixed[0.3] < fixed[usual]
    free = new_drafter(min_probability=None)
    drafted = [len(draft_of(free, budget)) for budget in (asked, BUDGET, asked)]
    assert drafted == [fixed[0.3], fixed[usual], fixed[0.3]]
    assert len(draft_of(new_drafter(min_probability=0.0), asked)) == fixed[0.0]


@pytest.mark.parametrize(("unit", "least"), [(True, 0.03), (False, 0.1)])
def test_paths_may_be_less_likely_where_rows_are_cheap(unit: bool, least: float) -> None:
    kit: Any = SimpleNamespace(has_cheap_rows=unit)
    assert ConfidenceOptions().min_probability_of([BUDGET], kit) == least


def draft_of(drafter: HeadDrafter, budget: DraftBudget) -> DraftTree:
    (tree,) = drafter.propose([begin(drafter, PROMPT)], [budget])
    return tree
