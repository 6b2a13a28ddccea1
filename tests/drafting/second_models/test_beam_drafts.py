"""A draft model that searches ahead of the target's beams."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_toys import blurred, model_context
from toys import LogitsOf, ToyBackend, hashed_logits, run_all, toy_sequence

from headstart.drafting.registry import create_drafter
from headstart.engine.beams import BeamGroup
from headstart.engine.engine import Engine
from headstart.engine.schedule import Limits
from headstart.passes.runner import ModelRunner
from headstart.sampling.params import SamplingParams
from headstart.verification.beam import BeamRules, BeamSearch

VOCAB, EOS = 14, 3
TARGET = hashed_logits(VOCAB, 1, order=3, scale=2.0)
PROMPT = [4, 1, 9, 2, 7, 7, 0]


def engine_with(draft: LogitsOf, draft_tokens: int = 5, draft_rows: int = 60) -> Engine:
    runner = ModelRunner(ToyBackend(VOCAB, TARGET, eos=(EOS,)), cache_tokens=4096, block_size=8)
    context = model_context(runner, {"small": ToyBackend(VOCAB, draft)})
    drafter = create_drafter("draft-model", context, model="small", draft_tokens=draft_tokens)
    return Engine(runner, drafter, Limits(draft_rows=draft_rows, max_context=512))


def search(engine: Engine, **more: object) -> BeamGroup:
    params = SamplingParams(beam_width=3, n=3, max_tokens=20, **more)  # type: ignore[arg-type]
    group = BeamGroup([toy_sequence(engine, PROMPT, sequence_id=i, params=params, sample=i) for i in range(3)])
    run_all(engine, group.results)
    return group


def expected() -> list[list[int]]:
    found = BeamSearch(BeamRules(3, 20, frozenset({EOS})))
    while not found.done:
        rows = [torch.tensor(TARGET((*PROMPT, *path.tokens))).float().log_softmax(-1).numpy() for path in found.live]
        found.step(rows)
    return [path.tokens for path in found.ended]


def test_a_draft_model_that_agrees_saves_nearly_all_passes() -> None:
    group = search(engine_with(TARGET))
    assert [result.output for result in group.results] == expected()
    stats = group.head.stats
    # Five levels of guesses and the step after them: six steps a round, the last round perhaps fewer.
    assert stats.rounds == -(-stats.beam_steps // 6)
    assert stats.drafted_per_position[:5] == stats.accepted_per_position[:5]


@pytest.mark.parametrize("blur", [0.3, 1.0, 5.0])
def test_one_that_errs_changes_no_beam(blur: float) -> None:
    group = search(engine_with(blurred(TARGET, 4, blur)))
    assert [result.output for result in group.results] == expected()
    assert group.head.stats.passes_saved >= (0 if blur > 1 else 3)


def test_the_draft_follows_penalties_of_each_beam() -> None:
    plain, guessed = (
        search(engine_with(TARGET, draft_rows=0), repetition_penalty=2.0),
        search(engine_with(TARGET), repetition_penalty=2.0),
    )
    assert [each.output for each in guessed.results] == [each.output for each in plain.results]
    assert [each.score for each in guessed.results] == [each.score for each in plain.results]
    assert plain.head.stats.passes_saved == 0
    assert guessed.head.stats.passes_saved > 3


def test_budgets_of_groups_are_kept() -> None:
    engine = engine_with(TARGET, draft_rows=10)
    rows: list[int] = []
    forward = engine.runner.backend.forward

    def counted(batch, storage):  # type: ignore[no-untyped-def]
        rows.append(batch.num_rows)
        return forward(batch, storage)

    engine.runner.backend.forward = counted  # type: ignore[method-assign]
    group = search(engine)
    assert [result.output for result in group.results] == expected()
    assert max(rows) <= 3 + 10
    assert np.max(rows) > 3


def test_forks_do_not_read_the_text_again() -> None:
    engine = engine_with(TARGET)
    drafter = engine.drafter
    rows: list[int] = []
    forward = drafter._model.runner.backend.forward  # type: ignore[attr-defined]

    def counted(batch, storage):  # type: ignore[no-untyped-def]
        rows.append(batch.num_rows)
        return forward(batch, storage)

    drafter._model.runner.backend.forward = counted  # type: ignore[attr-defined]
    search(engine)
    # After the prompt: what was committed since, at most six tokens a beam, and nodes of levels.
    assert max(rows[1:]) <= 3 * 9 * 5
    assert sum(row >= len(PROMPT) * 3 for row in rows[:1]) == 0
