from __future__ import annotations

import numpy as np
import pytest
import torch
from drafting_toys import ToySequence
from toys import ToyBackend, hashed_logits

from headstart.drafting.second_models.second_model import SecondModel
from headstart.passes.runner import ModelRunner, Span

VOCAB = 9
LOGITS = hashed_logits(VOCAB, seed=1)


def new_model(
    cache_tokens: int = 256, vocab_size: int = VOCAB, rows_per_pass: int = 512, max_positions: int = 4096
) -> SecondModel:
    runner = ModelRunner(ToyBackend(VOCAB, LOGITS, max_positions), cache_tokens, block_size=4)
    return SecondModel(runner, vocab_size, rows_per_pass)


def text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, VOCAB, size=length).tolist()


def expected(tokens: list[int]) -> torch.Tensor:
    return torch.tensor(LOGITS(tuple(tokens)), dtype=torch.float32)


@pytest.mark.parametrize("rows_per_pass", [3, 16, 512])
def test_prompts_are_read_in_chunks_and_together(rows_per_pass: int) -> None:
    model = new_model(rows_per_pass=rows_per_pass)
    sequences = [ToySequence(i, text(length)) for i, length in enumerate((1, 17, 30))]
    logits = model.catch_up(sequences)
    for sequence in sequences:
        assert torch.equal(logits[sequence.id], expected(sequence.tokens))
        assert model.cached(sequence.id) == len(sequence.tokens)
    assert model.runner.passes == -(-48 // rows_per_pass)


def test_steps_go_on_from_what_was_read() -> None:
    model = new_model()
    sequences = [ToySequence(i, text(5 + i)) for i in range(3)]
    model.catch_up(sequences)
    logits = model.read({0: 4, 2: 7})
    assert torch.equal(logits[0], expected([*sequences[0].tokens, 4]))
    assert torch.equal(logits[2], expected([*sequences[2].tokens, 7]))
    assert torch.equal(model.read({0: 1})[0], expected([*sequences[0].tokens, 4, 1]))
    assert model.runner.passes == 3


def test_only_what_the_sequence_confirms_stays() -> None:
    model = new_model()
    sequence = ToySequence(1, text(10))
    model.catch_up([sequence])
    for token in (1, 2, 3):
        model.read({1: token})
    sequence.tokens += [1, 2, 8]
    model.roll_back(sequence)
    assert model.cached(1) == 12
    rows = model.runner.backend.rows_seen
    assert torch.equal(model.catch_up([sequence])[1], expected(sequence.tokens))
    assert model.runner.backend.rows_seen == rows + 1


def test_a_wholly_accepted_draft_lacks_its_last_token() -> None:
    model = new_model()
    sequence = ToySequence(1, text(6))
    model.catch_up([sequence])
    model.read({1: 5})  # drafted 5 and then 6: 6 was never read
    sequence.tokens += [5, 6, 0]
    model.roll_back(sequence)
    assert model.cached(1) == 7
    assert torch.equal(model.catch_up([sequence])[1], expected(sequence.tokens))


def test_rounds_without_a_draft_are_caught_up() -> None:
    model = new_model()
    sequence = ToySequence(1, text(6))
    model.catch_up([sequence])
    sequence.tokens += text(13, seed=1)
    assert torch.equal(model.catch_up([sequence])[1], expected(sequence.tokens))


def test_the_root_is_never_kept_when_rolling_back() -> None:
    model = new_model()
    sequence = ToySequence(1, text(6))
    model.catch_up([sequence])
    model.roll_back(sequence)
    assert model.cached(1) == 5


def test_sequences_unused_for_longest_give_way() -> None:
    model = new_model(cache_tokens=32)
    first, second, third = (ToySequence(i, text(12)) for i in range(3))
    model.catch_up([first])
    model.catch_up([second])
    model.catch_up([first])
    assert model.catch_up([third])
    assert (model.cached(0), model.cached(1), model.cached(2)) == (12, 0, 12)
    assert torch.equal(model.catch_up([second])[1], expected(second.tokens))
    model.runner.cache.check()


def test_sequences_in_use_do_not_push_each_other_out() -> None:
    model = new_model(cache_tokens=32)
    sequences = [ToySequence(i, text(12)) for i in range(3)]
    assert list(model.catch_up(sequences)) == [0, 1]
    assert list(model.read({0: 1, 1: 2})) == [0, 1]  # blocks of 4: the last two free ones
    for _ in range(3):
        model.read({0: 1, 1: 2})
    assert list(model.read({0: 1, 1: 2})) == []


def test_what_can_never_fit_costs_no_pass() -> None:
    model = new_model(cache_tokens=32, max_positions=20)
    other = ToySequence(0, text(6))
    model.catch_up([other])
    passes = model.runner.passes
    assert model.catch_up([ToySequence(1, text(33))]) == {}
    assert model.catch_up([ToySequence(2, text(21))]) == {}
    assert model.runner.passes == passes
    assert model.cached(0) == 6


def test_the_end_of_the_context_stops_the_draft() -> None:
    model = new_model(max_positions=12)
    sequence = ToySequence(1, text(10))
    assert model.catch_up([sequence])
    assert model.read({1: 1})
    assert model.read({1: 1})
    assert model.read({1: 1}) == {}


def test_a_wider_head_is_cut_and_a_narrower_one_padded() -> None:
    sequence = ToySequence(1, text(4))
    cut = new_model(vocab_size=7).catch_up([sequence])[1]
    assert torch.equal(cut, expected(sequence.tokens)[:7])
    padded = new_model(vocab_size=11).catch_up([sequence])[1]
    assert torch.equal(padded[:VOCAB], expected(sequence.tokens))
    assert padded[VOCAB:].tolist() == [-torch.inf, -torch.inf]


def test_tokens_that_the_model_does_not_know_are_not_read() -> None:
    model = new_model(vocab_size=11)
    assert model.catch_up([ToySequence(1, [1, 10, 2]), ToySequence(2, [1, 2])]).keys() == {2}


def test_rows_that_are_not_kept_are_rolled_back() -> None:
    model = new_model()
    sequence = ToySequence(1, text(5))
    model.catch_up([sequence])
    tree = Span(1, np.array([3, 4, 5], dtype=np.int32), np.array([-1, -1, 1], dtype=np.int32))
    with model.passing(model.fitting([tree])) as outputs:
        assert torch.equal(outputs[0].logits[2], expected([*sequence.tokens, 4, 5]))
        model.keep(tree, [1, 2])
    assert model.cached(1) == 7
    assert torch.equal(model.read({1: 0})[1], expected([*sequence.tokens, 4, 5, 0]))
    with model.passing([tree]):
        pass
    assert model.cached(1) == 8
    model.runner.cache.check()


def test_forgetting_releases_everything() -> None:
    model = new_model()
    model.catch_up([ToySequence(i, text(20)) for i in range(3)])
    for i in range(4):
        model.forget(i)
    cache = model.runner.cache
    assert cache.allocator.num_free == cache.allocator.num_blocks
