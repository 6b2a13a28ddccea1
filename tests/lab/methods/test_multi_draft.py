from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence, check_tree
from model_toys import LayeredToy, blurred, coupled_texts, greedy_texts, memoised, model_context, model_engine
from text_laws import CROWD, opposed_tables, p_value, sample_texts
from thinning import thorough_but
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, table_logits, toy_sequence

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.registry import create_drafter
from headstart.drafting.second_models.draft_law import DraftLaw, DraftLawOptions
from headstart.engine.schedule import Limits
from headstart.errors import ConfigError
from headstart.passes.draft_tree import ROOT, DraftTree, TreeLaw
from headstart.passes.runner import ModelRunner
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams
from headstart_lab.methods.multi_draft.growing_trees import count_nodes, fit_branching
from headstart_lab.theory.formulas import draws_acceptance, draws_without_replacement_acceptance

VOCAB = 10
PROMPTS = [np.random.default_rng(i).integers(0, VOCAB, size=1 + 9 * i % 31).tolist() for i in range(9)]
WISHES = [
    SpeculationParams(),
    SpeculationParams(draft_tokens=2),
    SpeculationParams(enabled=False),
    SpeculationParams(tree_nodes=4),
]
KINDS: dict[str, dict[str, object]] = {
    "draws": {"model": "small", "branching": (3, 2)},
    "chains": {"model": "small", "branching": (3, 1)},
    "distinct": {"model": "small", "branching": (3, 2), "replacement": False},
    "models": {"models": ("small", "other"), "draft_tokens": 2},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def drafts_of(logits_of: LogitsOf, seed: int = 0) -> dict[str, ToyBackend]:
    return {name: ToyBackend(VOCAB, blurred(logits_of, seed + i, 1.0)) for i, name in enumerate(("small", "other"))}


def propose(sequence: ToySequence, budget: DraftBudget, logits_of: LogitsOf, **options: object) -> DraftTree:
    runner = ModelRunner(ToyBackend(VOCAB, logits_of), 256, block_size=8)
    drafter = create_drafter("multi-draft", model_context(runner, drafts_of(logits_of)), **options)
    (tree,) = drafter.propose([sequence], [budget])
    check_tree(tree, budget, VOCAB)
    return tree


@kinds
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("limits", "target_tokens", "options"),
    [
        (Limits(), 4096, {}),
        (Limits(max_sequences=3, max_rows=20, draft_rows=5), 4096, {}),
        (Limits(), 160, {}),
        (Limits(), 4096, {"cache_tokens": 64}),
    ],
    ids=["plenty", "small passes", "preemption", "small draft cache"],
)
def test_greedy_texts_are_those_of_plain_decoding(
    kind: str, seed: int, limits: Limits, target_tokens: int, options: dict[str, object]
) -> None:
    logits_of = memoised(hashed_logits(VOCAB, seed, order=3))
    target = ToyBackend(VOCAB, logits_of)
    engine = model_engine(
        target,
        "multi-draft",
        drafts_of(logits_of, seed),
        limits=limits,
        target_tokens=target_tokens,
        **KINDS[kind],
        **options,
    )
    assert greedy_texts(engine, PROMPTS, WISHES) == greedy_texts(model_engine(target, "none"), PROMPTS, WISHES)


@pytest.mark.parametrize("kind", thorough_but(["draws", "models"], KINDS))
def test_coupled_texts_do_not_depend_on_the_draft(kind: str) -> None:
    logits_of = hashed_logits(VOCAB, 5, order=3)
    target = ToyBackend(VOCAB, logits_of)
    params = {"temperature": 0.9, "presence_penalty": 0.4}
    engine = model_engine(target, "multi-draft", drafts_of(logits_of), **KINDS[kind])
    plain, _ = coupled_texts(model_engine(target, "none"), PROMPTS, **params)
    texts, stats = coupled_texts(engine, PROMPTS, **params)
    assert texts == plain
    assert sum(each.accepted for each in stats) > 60


@pytest.mark.thorough
@pytest.mark.parametrize("kind", thorough_but(["distinct"], KINDS))
@pytest.mark.parametrize("count", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_texts_follow_the_targets_law(kind: str, count: int) -> None:
    target, small = opposed_tables()
    other = 0.9 * small + 0.025  # nearly the first draft, so that noise shared between the two would show
    engine = model_engine(
        ToyBackend(4, table_logits(target)),
        "multi-draft",
        {"small": ToyBackend(4, table_logits(small)), "other": ToyBackend(4, table_logits(other))},
        limits=replace(CROWD, draft_rows=64 * 9),
        **KINDS[kind],
    )
    texts = sample_texts(engine, count, 3)
    assert p_value(texts, target) > 1e-3
    assert p_value(texts, small) < 1e-12


@pytest.mark.parametrize("replacement", [True, False])
def test_a_node_accepts_as_often_as_theory_says(replacement: bool) -> None:
    target, small = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    theory = (
        draws_acceptance(target, [small] * 3) if replacement else draws_without_replacement_acceptance(target, small, 3)
    )
    engine = model_engine(
        ToyBackend(4, lambda context: np.log(target)),
        "multi-draft",
        {"small": ToyBackend(4, lambda context: np.log(small))},
        limits=CROWD,
        model="small",
        branching=(3,),
        replacement=replacement,
    )
    sequences = [
        toy_sequence(engine, [0], sequence_id=i, params=SamplingParams(max_tokens=21, seed=i)) for i in range(40)
    ]
    run_all(engine, sequences)
    # The last token has no room for a guess beside it.
    rounds = sum(sequence.stats.drafted_per_position[0] for sequence in sequences)
    rate = sum(sequence.stats.accepted for sequence in sequences) / rounds
    assert rate == pytest.approx(theory, abs=3.5 * np.sqrt(theory * (1 - theory) / rounds))
    assert abs(rate - float(np.minimum(target, small).sum())) > 0.1


def test_draws_are_kept_where_nodes_are_merged() -> None:
    logits_of = hashed_logits(VOCAB, 1, order=1, scale=4.0)
    sequence = ToySequence(1, [1, 2])
    tree = propose(sequence, DraftBudget(64, 8), logits_of, model="small", branching=(4, 2, 1))
    assert tree.law is TreeLaw.SAMPLED
    assert tree.draws is not None
    assert len(tree.draws.nodes) == 4 + 8 + 8 > len(tree)
    # Every draw has its own draws below it, so a node bears as many as landed on it, twice as many on the first level.
    landed = Counter(tree.draws.nodes.tolist())
    below = Counter(tree.draws.parents.tolist())
    assert below[ROOT] == 4
    depths = dict(enumerate(tree.depths.tolist()))
    assert all(below[node] == {1: 2, 2: 1, 3: 0}[depths[node]] * times for node, times in landed.items())


def test_distinct_draws_have_the_law_of_draws_without_replacement() -> None:
    law = np.array([0.5, 0.3, 0.15, 0.05])
    runner = ModelRunner(ToyBackend(4, lambda context: np.log(law)), 4096, block_size=8)
    context = model_context(runner, {"small": runner.backend})
    options = {"model": "small", "branching": (2,), "replacement": False, "cache_tokens": 500 * 32}
    drafter = create_drafter("multi-draft", context, **options)
    sequences = [ToySequence(i, [1], noise=SequenceNoise(i)) for i in range(500)]
    trees = drafter.propose(sequences, [DraftBudget(2, 1)] * 500)
    pairs = Counter(tuple(tree.tokens.tolist()) for tree in trees)
    expected = {(a, b): 500 * law[a] * law[b] / (1 - law[a]) for a, b in product(range(4), repeat=2) if a != b}
    assert pairs.keys() <= expected.keys()
    assert sum((pairs[pair] - mean) ** 2 / mean for pair, mean in expected.items()) < 31.3  # 11 degrees, p = 1e-3


def test_a_law_of_few_tokens_gives_few_distinct_draws() -> None:
    params = SamplingParams(top_k=2)
    sequence = ToySequence(1, [1], params=params)
    tree = propose(
        sequence, DraftBudget(64, 8), hashed_logits(VOCAB), model="small", branching=(5, 5), replacement=False
    )
    assert len(tree) == 2 + 4
    assert tree.law is TreeLaw.WITHOUT_REPLACEMENT


@pytest.mark.parametrize("replacement", [True, False])
def test_rows_are_the_laws_of_their_paths(replacement: bool) -> None:
    logits_of = hashed_logits(VOCAB, 2)
    params = SamplingParams(temperature=0.8, presence_penalty=1.0)
    sequence = ToySequence(1, [1, 2, 3], params=params)
    tree = propose(sequence, DraftBudget(64, 8), logits_of, model="small", branching=(2, 2, 2), replacement=replacement)
    assert tree.draws is not None
    law, small = DraftLaw(sequence, DraftLawOptions(), VOCAB, ()), blurred(logits_of, 0, 1.0)
    for parent, row in zip(tree.draws.parents.tolist(), tree.draws.rows.tolist(), strict=True):
        path = tree.tokens[tree.path_to(parent)].tolist()
        logits = torch.tensor(small((1, 2, 3, *path)), dtype=torch.float32)
        assert torch.equal(tree.draft_probs[row], law.probs(logits, path))


def test_greedy_requests_get_the_likeliest_paths() -> None:
    logits_of = hashed_logits(VOCAB, 2)
    small = blurred(logits_of, 0, 1.0)
    sequence = ToySequence(1, [1, 2], params=SamplingParams(temperature=0))
    tree = propose(sequence, DraftBudget(64, 8), logits_of, model="small", branching=(3, 2))
    assert tree.law is TreeLaw.POINT_MASS

    def log_probs(context: tuple[int, ...]) -> np.ndarray:
        logits = small(context)
        return logits - np.log(np.exp(logits).sum())

    first = np.argsort(-log_probs((1, 2)))[:3].tolist()
    assert tree.tokens[:3].tolist() == first
    paths = {(a, b): log_probs((1, 2))[a] + log_probs((1, 2, a))[b] for a in first for b in range(VOCAB)}
    best = sorted(paths, key=paths.__getitem__, reverse=True)[:6]
    assert [tuple(tree.tokens[tree.path_to(node)].tolist()) for node in range(3, 9)] == best


def test_coupled_requests_get_what_the_noise_picks_first() -> None:
    logits_of = hashed_logits(VOCAB, 2)
    small = blurred(logits_of, 0, 1.0)
    sequence = ToySequence(1, [1, 2], speculation=SpeculationParams(verify=VerifyRule.COUPLED))
    tree = propose(sequence, DraftBudget(64, 8), logits_of, model="small", branching=(3, 2))
    assert tree.law is TreeLaw.POINT_MASS
    assert len(tree) == 9
    for parent in (ROOT, 0, 1, 2):
        path = tree.tokens[tree.path_to(parent)].tolist()
        noise = sequence.noise.position_exponentials(2 + len(path), VOCAB).numpy()
        order = np.argsort(noise / np.exp(small((1, 2, *path))))
        children = [int(tree.tokens[child]) for child in tree.children[parent]]
        assert children == order[: len(children)].tolist()


def test_several_models_draw_one_chain_each() -> None:
    logits_of = hashed_logits(VOCAB, 1, order=1, scale=4.0)
    sequence = ToySequence(1, [1, 2])
    tree = propose(sequence, DraftBudget(64, 8), logits_of, models=("small", "other"), draft_tokens=3)
    assert tree.draws is not None
    assert len(tree.draws.nodes) == 6
    law = DraftLaw(sequence, DraftLawOptions(), VOCAB, ())
    for draw, (parent, row) in enumerate(zip(tree.draws.parents.tolist(), tree.draws.rows.tolist(), strict=True)):
        path = tree.tokens[tree.path_to(parent)].tolist()
        model = blurred(logits_of, draw // 3, 1.0)
        logits = torch.tensor(model((1, 2, *path)), dtype=torch.float32)
        assert torch.equal(tree.draft_probs[row], law.probs(logits, path))


@pytest.mark.parametrize("nodes", range(1, 30))
def test_branching_is_cut_to_the_budget(nodes: int) -> None:
    for branching in ((3, 2, 1, 1), (4, 1, 1, 1, 1), (8,), (1,) * 9, (2, 2, 2)):
        for depth in (1, 3, 9):
            fitted = fit_branching(branching, nodes, depth)
            assert count_nodes(fitted) <= nodes
            assert len(fitted) == min(len(branching), depth, nodes)
            assert all(1 <= cut <= whole for cut, whole in zip(fitted, branching, strict=False))
            wider = [(*fitted[:i], fitted[i] + 1, *fitted[i + 1 :]) for i in range(len(fitted))]
            whole = branching[: len(fitted)]
            assert fitted == whole or any(count_nodes(shape) > nodes for shape in wider)


def test_a_level_costs_one_pass_for_all_sequences() -> None:
    logits_of = hashed_logits(VOCAB, 1)
    runner = ModelRunner(ToyBackend(VOCAB, logits_of), 256, block_size=8)
    small = drafts_of(logits_of)["small"]
    drafter = create_drafter("multi-draft", model_context(runner, {"small": small}), model="small", branching=(2, 2, 1))
    sequences = [ToySequence(i, PROMPTS[i]) for i in range(4)]
    drafter.propose(sequences, [DraftBudget(10, 3)] * 3 + [DraftBudget(1, 1)])
    assert drafter._models[0].runner.passes == 3


def test_made_of_the_targets_layers() -> None:
    logits_of = hashed_logits(VOCAB, 1, order=2)
    target = LayeredToy(VOCAB, logits_of, blurred(logits_of, 1, 0.5))
    engine = model_engine(target, "multi-draft", layers=2)
    assert greedy_texts(engine, PROMPTS, WISHES) == greedy_texts(model_engine(target, "none"), PROMPTS, WISHES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branching": ()}, "at least one level"),
        ({"branching": (2, 0)}, "1 or more draws"),
        ({"branching": "3,2"}, "must be a list of integers"),
        ({"models": "small"}, "must be a list of names"),
        ({"models": ("small",), "model": "small"}, "give one of them"),
        ({"models": ("small", "other"), "replacement": False}, "leave out models"),
    ],
    ids=str,
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    runner = ModelRunner(ToyBackend(VOCAB, hashed_logits(VOCAB)), 64, block_size=8)
    with pytest.raises(ConfigError, match=message):
        create_drafter("multi-draft", model_context(runner, drafts_of(hashed_logits(VOCAB))), **options)
