"""Multi-token modules as a drafter: found in the target's checkpoint, in trees, in the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from devices import DEVICES, on
from drafting_toys import ToySequence
from head_toys import head_context, head_drafter, random_modules, random_tables, state_after
from multi_token_models import write_modules, write_tiny_mimo
from native_here import needs_native
from thinning import thorough_but
from tiny_checkpoint import write_tiny_model, write_tokenizer

from headstart.backends.native.loader import load_library
from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.native.stretch import NativeStretches
from headstart.backends.torch.multi_token_pass import MultiTokenPass
from headstart.drafting.base import DraftBudget, Drafter, RoundOutcome
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.methods.auto.drafter import AutoDrafter
from headstart.drafting.registry import create_drafter
from headstart.engine import engine as engine_module
from headstart.entrypoints.llm import LLM
from headstart.errors import CheckpointError, ConfigError
from headstart.loading.lending import draft_context
from headstart.loading.model import Model, load_model
from headstart.passes.batch import FINAL_TAP, TapStates
from headstart.passes.draft_tree import ROOT, DraftTree
from headstart.passes.runner import ModelRunner
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5, 9]
BUDGET = DraftBudget(nodes=40, depth=4)
CHAIN = {"width": 1, "min_probability": 0.0}


def begin(drafter: Drafter, tokens: list[int], seed: int = 7, **params: float) -> ToySequence:
    asked = SamplingParams(**{"temperature": 0, **params})  # type: ignore[arg-type]
    sequence = ToySequence(1, list(tokens), params=asked, noise=SequenceNoise(seed))
    drafter.begin(sequence)
    drafter.observe([RoundOutcome(sequence, 0, np.asarray(tokens[:-1], dtype=np.int32), DraftTree.empty())])
    return sequence


def said(tokens: list[int], path: list[int], modules: int) -> torch.Tensor:
    """Logits after a path of guesses, by a pass of its own that grows nothing but that chain."""
    running = MultiTokenPass(random_modules(VOCAB, modules), random_tables(VOCAB), torch.float32)
    cache = running.new_cache()
    features = torch.stack([state_after(tokens[: i + 1], FINAL_TAP) for i in range(len(tokens) - 1)])
    rows = np.asarray(tokens[1:], dtype=np.int32)
    states, logits = running.read(rows, features, [DraftRows(cache, len(rows))])
    for depth, token in enumerate(path):
        own = np.arange(depth + 1, dtype=np.int32)[None]
        states, logits = running.step(np.array([token], dtype=np.int32), states, [DraftRows(cache, 1, own)])
    return logits[0]


@pytest.mark.parametrize("modules", thorough_but([2], [1, 2, 3]))
def test_a_chain_is_the_best_token_after_each_guess(modules: int) -> None:
    drafter = head_drafter("mtp", VOCAB, {"model": str(modules), **CHAIN})
    sequence = begin(drafter, PROMPT)
    for _ in range(4):
        tree = drafter.propose([sequence], [BUDGET])[0]
        path: list[int] = []
        for _ in range(BUDGET.depth):
            path.append(int(said(sequence.tokens, path, modules).argmax()))
        assert tree.tokens.tolist() == path
        rows = np.asarray([sequence.tokens[-1], *path], dtype=np.int32)
        position = len(sequence.tokens) - 1
        sequence.tokens.extend([path[0], 10])
        drafter.observe([RoundOutcome(sequence, position, rows, tree, (0,), (path[0], 10))])


@pytest.mark.parametrize("modules", [1, 3])
def test_children_are_the_best_tokens_after_their_path(modules: int) -> None:
    options = {"model": str(modules), "width": 3, "min_probability": 0.0, "tree_nodes": 40}
    tree = (drafter := head_drafter("mtp", VOCAB, options)).propose([begin(drafter, PROMPT)], [BUDGET])[0]
    paths: list[list[int]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append([*([] if parent == ROOT else paths[parent]), token])
    families = 0
    for node in [ROOT, *range(len(tree))]:
        children = [int(tree.tokens[child]) for child in np.flatnonzero(tree.parents == node)]
        if children:
            path = [] if node == ROOT else paths[node]
            assert set(children) == set(said(PROMPT, path, modules).topk(len(children)).indices.tolist())
            families += len(children) > 1
    assert families > 3


def test_sampled_requests_rank_by_the_positions_own_noise() -> None:
    drafter, temperature = head_drafter("mtp", VOCAB, CHAIN), 6.0
    chains = set()
    for seed in range(5):
        drafter.end(1)
        sequence = begin(drafter, PROMPT, seed, temperature=temperature)
        tree = drafter.propose([sequence], [BUDGET])[0]
        assert tree.draft_probs is None
        path: list[int] = []
        for depth in range(BUDGET.depth):
            noise = sequence.noise.position_exponentials(len(PROMPT) + depth, VOCAB, torch.arange(VOCAB))
            path.append(int((said(PROMPT, path, 2).double() / temperature - noise.log()).argmax()))
        assert tree.tokens.tolist() == path
        chains.add(tuple(path))
    assert len(chains) > 1


def test_texts_too_short_for_all_modules_wait() -> None:
    drafter = head_drafter("mtp", VOCAB, {"model": "3", **CHAIN})
    assert len(drafter.propose([begin(drafter, PROMPT[:3])], [BUDGET])[0]) == 0
    assert len(drafter.propose([begin(drafter, PROMPT[:4])], [BUDGET])[0]) == 4


def test_a_target_without_modules_is_told() -> None:
    context = replace(head_context(VOCAB), lend_modules=lambda name: None)
    with pytest.raises(ConfigError, match="has no multi-token modules"):
        create_drafter("mtp", context)


PROMPTS = [list(range(40, 40 + length)) for length in (1, 3, 30, 12)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=1.0, top_p=0.9, max_tokens=20, seed=1),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, max_tokens=24, seed=2),
    SamplingParams(temperature=0, logit_bias={50: 3.0}, min_tokens=4, max_tokens=10),
]
OPTIONS = {"min_probability": 0.0}


NATIVE = pytest.param("native", marks=needs_native)
HERE = [*DEVICES, NATIVE]


@pytest.fixture(scope="module", params=[*DEVICES, pytest.param("simulated", marks=pytest.mark.thorough), NATIVE])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The native pass computes one with wide heads, in bf16."""
    folder = tmp_path_factory.mktemp("model")
    if request.param == "native":
        yield load_model(write_tiny_mimo(folder, head_dim=32), "bf16")
        return
    with on(request.param) as device:
        yield load_model(write_tiny_mimo(folder), "fp32", device=device)


def test_the_text_is_the_targets_own(target: Model) -> None:
    plain = [output.outputs[0].token_ids for output in LLM(target, "none").generate(PROMPTS, PARAMS)]
    llm = LLM(target, "mtp", drafter_options=OPTIONS, max_batch_size=3)
    outputs = llm.generate(PROMPTS, PARAMS)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)


@pytest.mark.parametrize("target", HERE, indirect=True)
def test_beams_are_those_without_guesses(target: Model) -> None:
    beams = SamplingParams(beam_width=3, n=3, max_tokens=14)
    plain = LLM(target, "none").generate(PROMPTS[1:3], beams)
    found = LLM(target, "mtp", drafter_options=OPTIONS).generate(PROMPTS[1:3], beams)
    for output, expected in zip(found, plain, strict=True):
        assert [beam.token_ids for beam in output.outputs] == [beam.token_ids for beam in expected.outputs]
        assert output.stats.beam_steps == expected.stats.beam_steps


@pytest.mark.parametrize("target", HERE, indirect=True)
@pytest.mark.parametrize("caching", thorough_but([True], [False, True]))
def test_chunks_and_preemptions(target: Model, caching: bool) -> None:
    prompts, params = PROMPTS[1:3], [replace(each, max_tokens=70, ignore_eos=True) for each in PARAMS[:2]]
    options = {**OPTIONS, "tree_nodes": 6}
    llm = LLM(target, "mtp", drafter_options=options, max_context=110, cache_tokens=97, prefix_caching=caching)
    llm.engine.limits = replace(llm.engine.limits, max_rows=18, draft_rows=8)
    outputs = llm.generate(prompts, params)
    plain = LLM(target, "none", max_context=110).generate(prompts, params)
    assert [output.outputs[0].token_ids for output in outputs] == [output.outputs[0].token_ids for output in plain]
    assert sum(output.outputs[0].stats.preemptions for output in outputs) > 0
    assert all(output.outputs[0].stats.drafted > 0 for output in outputs)


@pytest.mark.parametrize("target", HERE, indirect=True)
def test_behind_a_cached_prefix_it_guesses_as_before(target: Model) -> None:
    llm = LLM(target, "mtp", drafter_options=OPTIONS, prefix_caching=True)
    params = SamplingParams(temperature=0, max_tokens=24)
    first, second = (llm.generate([list(range(40, 110))], params)[0].outputs[0] for _ in range(2))
    assert second.stats.cached_tokens > 0
    assert second.token_ids == first.token_ids
    assert (second.stats.rounds, second.stats.drafted) == (first.stats.rounds, first.stats.drafted)


@pytest.mark.parametrize("target", [NATIVE], indirect=True)
def test_rounds_run_in_one_call(target: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """In stretches as round by round, with every kind of drawing that they take."""
    prompts = PROMPTS[:3]
    params = [
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
        SamplingParams(temperature=1.0, top_p=0.9, max_tokens=40, seed=1, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    ]
    rounds = []
    run = NativeStretches.run

    def counted(stretches: NativeStretches, *arguments: object) -> object:
        rounds.append(run(stretches, *arguments))  # type: ignore[arg-type]
        return rounds[-1]

    monkeypatch.setattr(NativeStretches, "run", counted)
    at_once = LLM(target, "mtp", drafter_options=OPTIONS).generate(prompts, params)
    assert sum(map(len, rounds)) > 5
    monkeypatch.setattr(engine_module, "run_stretch", lambda *arguments: False)
    one_by_one = LLM(target, "mtp", drafter_options=OPTIONS).generate(prompts, params)
    for each, other in zip(at_once, one_by_one, strict=True):
        assert each.outputs[0].token_ids == other.outputs[0].token_ids
        stats = [output.outputs[0].stats for output in (each, other)]
        assert stats[0].drafted == stats[1].drafted > 0
        assert stats[0].accepted == stats[1].accepted


@pytest.mark.parametrize("target", [NATIVE], indirect=True)
@pytest.mark.parametrize("options", [{}, {"width": 1}, {"draft_vocabulary": 60}, {"draft_vocabulary": 60, "width": 3}])
def test_drafts_of_one_call_are_those_of_single_steps(
    target: Model, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tokens are guessed because the text holds them alone."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logit_bias={50: 3.0})
    told = []
    for steps in (False, True):
        if steps:
            monkeypatch.setattr(NativeModulePass, "growth", lambda *arguments: None)
        llm = LLM(target, "mtp", drafter_options=OPTIONS | options)
        outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
        told.append([(output.token_ids, output.stats) for output in outputs])
    for (tokens, grown), (others, stepped) in zip(*told, strict=True):
        assert tokens == others
        assert (grown.rounds, grown.drafted, grown.accepted) == (stepped.rounds, stepped.drafted, stepped.accepted)


@pytest.mark.parametrize("target", [NATIVE], indirect=True)
def test_a_cut_vocabulary_is_made_up_for_by_the_text(target: Model) -> None:
    context = draft_context(target, ModelRunner(target.backend, 512))
    drafter = create_drafter("mtp", context, draft_vocabulary=60, **{**OPTIONS, "width": 5})
    text = [*range(90, 120), 50, 51, 52]
    sequence = ToySequence(1, text, params=SamplingParams(temperature=0), noise=SequenceNoise(3))
    hidden = np.random.default_rng(0).normal(size=(1, len(text) - 1, target.config.hidden_size)).astype(np.float32)
    drafter.begin(sequence)
    rows = np.asarray(text[:-1], dtype=np.int32)
    states = TapStates((FINAL_TAP,), 4 * hidden)
    drafter.observe([RoundOutcome(sequence, 0, rows, DraftTree.empty(), hidden=states)])
    said = set(drafter.propose([sequence], [DraftBudget(nodes=60, depth=4)])[0].tokens.tolist())
    assert said <= {*range(60), *text}
    assert said & {*range(90, 120)}


@pytest.mark.parametrize("target", DEVICES[:1], indirect=True)
def test_the_planner_runs_what_came_with_the_target(target: Model) -> None:
    llm = LLM(target, "auto")
    assert isinstance(llm.engine.drafter, AutoDrafter)
    assert FINAL_TAP in llm.engine.drafter.needs.taps


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("deepseek_v3", {}),
        ("mellum", {}),
        ("deepseek_v4", {"q_lora_rank": 32, "o_lora_rank": 32, "index_head_dim": 32}),
        ("glm4_moe", {}),
        ("qwen3_next", {"head_dim": 32, "linear_key_head_dim": 32, "linear_value_head_dim": 32}),
    ],
)
def test_families_guess_for_themselves(family: str, sizes: dict[str, int], tmp_path: Path) -> None:
    """Their own checkpoints, read as a user reads them; of some sizes on the native pass."""
    write_modules(family, tmp_path, 1, **sizes)
    write_tokenizer(tmp_path)
    prompts, params = [[5, 17, 3, 44, 9]], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    target = load_model(tmp_path, "fp32")
    assert target.backend.name.startswith("native" if sizes and load_library() else "torch")
    plain = LLM(target, "none").generate(prompts, params)[0].outputs[0]
    llm = LLM(target, "mtp", drafter_options=OPTIONS)
    where = "the native pass" if sizes and load_library() else "PyTorch"
    assert any(f"Multi-token modules run in {where}" in each for each in llm.notices)
    output = llm.generate(prompts, params)[0].outputs[0]
    assert output.token_ids == plain.token_ids
    assert output.stats.drafted > 0


@pytest.mark.parametrize("target", DEVICES[:1], indirect=True)
def test_modules_of_another_checkpoint(target: Model, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=12)
    (tmp_path / "same").mkdir()
    other = write_tiny_mimo(tmp_path / "same", seed=5)
    llm = LLM(target, "mtp", draft_model=other, drafter_options=OPTIONS)
    assert llm.generate(PROMPTS[:1], params)[0].outputs[0].stats.drafted > 0
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="of another shape than the target"):
        LLM(target, "mtp", draft_model=write_tiny_model(tmp_path / "other", layers=2))
    with pytest.raises(CheckpointError, match="does not exist"):
        LLM(target, "mtp", draft_model=tmp_path / "nothing")
