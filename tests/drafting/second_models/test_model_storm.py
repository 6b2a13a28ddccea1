"""Random storms over the drafters that run a model: whatever came before, they guess like one who begins now."""

from __future__ import annotations

import numpy as np
import pytest
from drafting_toys import CONTRACT_VOCAB, ToySequence, check_tree, second_order_target, shape, verify_greedily
from model_toys import contract_context, with_target_cache

from headstart.common.enumerations import VerifyRule
from headstart.drafting.base import DraftBudget, SpeculationParams
from headstart.drafting.second_models.second_model import SecondModel
from headstart.sampling.noise import SequenceNoise
from headstart.sampling.params import SamplingParams

TARGET = second_order_target(CONTRACT_VOCAB)
DRAFTERS: dict[str, tuple[str, dict[str, object]]] = {
    "draft-model": ("draft-model", {"model": "small"}),
    "draws": ("multi-draft", {"model": "small"}),
    "models": ("multi-draft", {"models": ("small", "other")}),
    "hierarchical": ("hierarchical", {"model": "small", "inner": "suffix"}),
    "doubly so": ("hierarchical", {"model": "small", "inner": "draft-model", "inner_options": {"model": "other"}}),
    "early-exit": ("early-exit", {}),
}
LAWS = [
    (SamplingParams(temperature=0), SpeculationParams()),
    (SamplingParams(presence_penalty=1.0), SpeculationParams()),
    (SamplingParams(top_k=5), SpeculationParams(verify=VerifyRule.COUPLED)),
]


def models_of(owner: object) -> list[SecondModel]:
    """Every second model that a drafter holds, its own drafter's too."""
    found: list[SecondModel] = []
    for value in vars(owner).values():
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, SecondModel):
                found.append(part)
            elif type(part).__module__.startswith("headstart.drafting") and hasattr(part, "propose"):
                found += models_of(part)
    return found


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("cache_tokens", [None, 96])
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 9))])
def test_storm(name: str, cache_tokens: int | None, seed: int) -> None:
    kind, options = DRAFTERS[name]
    if cache_tokens is not None and name != "early-exit":
        options = {**options, "cache_tokens": cache_tokens}
    rng = np.random.default_rng(seed)
    veteran = with_target_cache(kind, contract_context(CONTRACT_VOCAB), options)
    models = models_of(veteran.drafter)
    assert bool(models) == (name != "early-exit")
    alive: dict[int, ToySequence] = {}
    born = 0
    guessed = 0
    for turn in range(60):
        if len(alive) < 5 and rng.random() < 0.4:
            params, wishes = LAWS[born % len(LAWS)]
            prompt = rng.integers(0, CONTRACT_VOCAB, size=rng.integers(1, 40)).tolist()
            alive[born] = ToySequence(born, prompt, 0, params, wishes, SequenceNoise(born))
            veteran.begin(alive[born])
            born += 1
        riding = [sequence for sequence in alive.values() if rng.random() < 0.7]
        budgets = [DraftBudget(int(rng.integers(0, 9)), int(rng.integers(0, 6))) for _ in riding]
        trees = veteran.propose(riding, budgets)
        guessed += sum(map(len, trees))
        for sequence, budget, tree in zip(riding, budgets, trees, strict=True):
            check_tree(tree, budget, CONTRACT_VOCAB)
            if cache_tokens is None and turn % 7 == 0:
                twin = ToySequence(
                    sequence.id,
                    list(sequence.tokens),
                    sequence.prompt_length,
                    sequence.params,
                    sequence.speculation,
                    sequence.noise,
                )
                novice = with_target_cache(kind, contract_context(CONTRACT_VOCAB), options)
                novice.begin(twin)
                assert shape(novice.propose([twin], [budget])[0]) == shape(tree)
        outcomes = [verify_greedily(sequence, tree, TARGET, 0) for sequence, tree in zip(riding, trees, strict=True)]
        veteran.observe(outcomes)
        for model in models:
            model.runner.cache.check()
        for sequence in riding:
            assert all(model.cached(sequence.id) <= len(sequence.tokens) - 1 for model in models)
            if rng.random() < 0.1 or len(sequence.tokens) > 120:
                veteran.end(sequence.id)
                if rng.random() < 0.5 and len(sequence.tokens) <= 120:
                    veteran.begin(sequence)  # preempted, and back again
                else:
                    del alive[sequence.id]
    assert guessed > 100
    for sequence in alive.values():
        veteran.end(sequence.id)
    for model in models:
        model.runner.cache.check()
        assert model.runner.cache.allocator.num_free == model.runner.cache.allocator.num_blocks
