"""Passes by transformers' own code: each way of running them keeps the logits of a plain call."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from foreign_models import foreign_backend, tiny_model
from tiny_configs import KINDS, SHOWN, VOCAB
from torch import Tensor
from transformers import PreTrainedModel

from headstart.errors import CheckpointError
from headstart.passes.batch import FINAL_TAP
from headstart.passes.cache.prefix import PrefixIndex
from headstart.passes.runner import ModelRunner, Span
from headstart_integrations.transformers.backend import TransformersBackend
from headstart_integrations.transformers.calls import Caller
from headstart_integrations.transformers.carried import CachePlan
from headstart_integrations.transformers.paths import ByPath, Carrying
from headstart_integrations.transformers.trial import find_way

BLOCK = 8
TOKENS = [(7 * place + 3) % 200 + 1 for place in range(40)]
OTHERS = [(11 * place + 5) % 200 + 1 for place in range(40)]


@torch.inference_mode()
def plain(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """float32 [vocab] after the last of them, by one call without a cache."""
    logits: Tensor = model(torch.tensor([list(tokens)]), use_cache=False).logits[0, -1]
    return logits.float()


def read(runner: ModelRunner, sequence_id: int, tokens: Sequence[int]) -> None:
    with runner.cache.reserve({sequence_id: len(tokens)}):
        runner.forward([Span.chain(sequence_id, tokens, "none")])
        runner.cache.commit(sequence_id, range(len(tokens)))


def tree(sequence_id: int, tokens: Sequence[int], parents: Sequence[int]) -> Span:
    return Span(sequence_id, np.array(tokens, dtype=np.int32), np.array(parents, dtype=np.int32))


def check(model: PreTrainedModel, backend: TransformersBackend, atol: float = 1e-4) -> None:
    """Two sequences in pieces, a tree in one, a chain in the other; a path kept; a shared prefix; a fork."""
    runner = ModelRunner(backend, 30 * BLOCK, BLOCK, PrefixIndex("tiny"))
    cache = runner.cache
    for sequence_id in (0, 1):
        cache.add(sequence_id)
    read(runner, 0, TOKENS[:17])
    read(runner, 1, OTHERS[:3])
    read(runner, 0, TOKENS[17:20])
    cache.publish(0, TOKENS)

    # Root, two children, two of the first one's, one of the second's.
    nodes = [TOKENS[20], 9, 8, 7, 6, 5]
    spans = [tree(0, nodes, [-1, 0, 0, 1, 1, 2]), Span.chain(1, OTHERS[3:8])]
    with cache.reserve({0: 6, 1: 5}):
        first, second = runner.forward(spans)
        cache.commit(0, [0, 2, 5])
        cache.commit(1, [0, 1])
    paths = [[], [9], [8], [9, 7], [9, 6], [8, 5]]
    for row, path in enumerate(paths):
        torch.testing.assert_close(first.logits[row], plain(model, [*TOKENS[:21], *path]), atol=atol, rtol=0)
    for row in range(5):
        torch.testing.assert_close(second.logits[row], plain(model, OTHERS[: 4 + row]), atol=atol, rtol=0)

    # A third begins as the first did; a fourth is the first's copy.
    cache.add(2)
    assert cache.adopt(2, TOKENS[:20]) == 2 * BLOCK
    cache.fork(0, 3)
    after = [*TOKENS[:21], 8, 5]
    with cache.reserve({0: 1, 1: 1, 2: 4, 3: 2}):
        outputs = runner.forward(
            [
                Span.chain(0, [31]),
                Span.chain(1, [OTHERS[5]], "last"),
                Span.chain(2, TOKENS[16:20], "last"),
                Span.chain(3, [33, 34]),
            ]
        )
        cache.commit(0, [0])
        cache.commit(3, [0, 1])
    wanted = [[*after, 31], OTHERS[:6], TOKENS[:20], [*after, 33], [*after, 33, 34]]
    found = [outputs[0].logits[0], outputs[1].logits[0], outputs[2].logits[0], *outputs[3].logits]
    for row, tokens in zip(found, wanted, strict=True):
        torch.testing.assert_close(row, plain(model, tokens), atol=atol, rtol=0)

    # Back behind a block's end, and on.
    cache.truncate(3, 18)
    with cache.reserve({3: 2, 0: 1}):
        outputs = runner.forward([Span.chain(3, [41, 42], "last"), Span.chain(0, [43], "last")])
    torch.testing.assert_close(outputs[0].logits[0], plain(model, [*TOKENS[:18], 41, 42]), atol=atol, rtol=0)
    torch.testing.assert_close(outputs[1].logits[0], plain(model, [*after, 31, 43]), atol=atol, rtol=0)
    cache.check()


@pytest.mark.parametrize("kind", SHOWN)
def test_passes_keep_the_logits_of_a_plain_call(kind: str) -> None:
    model = tiny_model(kind)
    check(model, foreign_backend(model))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_logits_of_a_plain_call(kind: str) -> None:
    model = tiny_model(kind)
    # Where transformers' own code differs by more between a step and a chunk of a recurrence, more is let through.
    check(model, foreign_backend(model), atol=1e-3 if kind == "zamba2" else 1e-4)


@pytest.mark.parametrize("carrying", list(Carrying))
def test_every_way_of_carrying_states_does(carrying: Carrying) -> None:
    model = tiny_model("granitemoehybrid")
    backend = foreign_backend(model)
    call = Caller(model, 4, backend.config.vocab_size)
    seen = call(np.array(TOKENS[:9], np.int32), np.zeros(0, np.int32), use_cache=True).cache
    blank = type(seen)(config=model.config)
    backend._way = ByPath(call, CachePlan(seen, blank, 9), carrying)
    check(model, backend)


def test_states_that_were_given_up_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart_integrations.transformers.storage._STATE_BYTES", 0)
    monkeypatch.setattr("headstart_integrations.transformers.storage._FEWEST_STATES", 1)
    model = tiny_model("qwen3_next")
    check(model, foreign_backend(model))


def test_the_ways_are_what_they_should_be() -> None:
    remarks = {kind: foreign_backend(tiny_model(kind)).remark for kind in ("cohere2", "bloom", "mamba", "openai-gpt")}
    assert remarks == {
        "cohere2": "all sequences in one call",
        "bloom": "one call for each sequence and branch",
        "mamba": "one call for each token, since its states take no several at once",
        "openai-gpt": "each text anew in every pass",
    }


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_what_a_model_remembers_may_have_either_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.24 calls the argument, and what is returned, otherwise than before."""
    model = tiny_model("granitemoehybrid")
    forward = type(model).forward
    own = next(each for each in ("cache", "past_key_values") if each in inspect.signature(forward).parameters)

    def renamed(self: PreTrainedModel, input_ids: Tensor, position_ids: Tensor | None = None, **given: Any) -> Any:
        if name in given:
            given[own] = given.pop(name)
        output = forward(self, input_ids=input_ids, position_ids=position_ids, **given)
        return SimpleNamespace(logits=output.logits, **{name: getattr(output, own)})

    taken = ("self", "input_ids", "position_ids", "use_cache", "return_dict", name)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(each, kind, default=None) for each in taken])
    monkeypatch.setattr(renamed, "__signature__", signature, raising=False)
    monkeypatch.setattr(type(model), "forward", renamed)
    assert foreign_backend(model).remark == "one call for each sequence and branch"


@pytest.mark.parametrize("rows", [240, 300])
def test_logits_are_counted_and_can_be_read_again(rows: int) -> None:
    """A head may have fewer rows than the embedding, or more."""
    model = tiny_model("granitemoehybrid")
    model.lm_head = torch.nn.Linear(model.config.hidden_size, rows, bias=False)
    backend = foreign_backend(model)
    assert backend.config.vocab_size == min(rows, model.config.vocab_size)
    runner = ModelRunner(backend, 8 * BLOCK, BLOCK)
    runner.cache.add(0)
    with runner.cache.reserve({0: 6}):
        (output,) = runner.forward([Span.chain(0, TOKENS[:6])])
    torch.testing.assert_close(output.logits[-1], plain(model, TOKENS[:6])[:VOCAB], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("kind", "remark"), [("granitemoehybrid", "sequence and branch"), ("mamba", "each token")])
def test_rounding_does_not_decide_the_way(kind: str, remark: str) -> None:
    """In bf16 states forgotten differ hardly more than states kept; the weights come out of the trial as they were."""
    model = tiny_model(kind).to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    backend = foreign_backend(model)
    assert remark in backend.remark
    assert backend.name == "transformers-bf16"
    for name, tensor in model.state_dict().items():
        assert tensor.dtype is torch.bfloat16
        assert torch.equal(tensor, before[name])


def test_a_model_that_looks_ahead_is_refused() -> None:
    model = tiny_model("bert")
    with pytest.raises(CheckpointError, match=r"'bert' cannot be decoded: .* of the largest logit away"):
        find_way(Caller(model, 4, model.config.vocab_size), "bert")


@pytest.mark.parametrize("kind", ["cohere2", "granitemoehybrid"])
def test_taps_are_transformers_hidden_states(kind: str) -> None:
    model = tiny_model(kind)
    runner = ModelRunner(foreign_backend(model), 8 * BLOCK, BLOCK)
    runner.cache.add(0)
    with runner.cache.reserve({0: 6}):
        output = runner.forward([Span.chain(0, TOKENS[:6])], taps=(0, 2, FINAL_TAP))[0]
    with torch.inference_mode():
        states = model(torch.tensor([TOKENS[:6]]), use_cache=False, output_hidden_states=True).hidden_states
    for tap, place in ((0, 0), (2, 2), (FINAL_TAP, -1)):
        np.testing.assert_allclose(output.hidden[tap], states[place][0].numpy(), atol=1e-4)


def test_a_window_is_that_of_the_models_own_code() -> None:
    """Far beyond it, in one pass and token by token."""
    model = tiny_model("cohere2", sliding_window=3)
    runner = ModelRunner(foreign_backend(model), 8 * BLOCK, BLOCK)
    runner.cache.add(0)
    read(runner, 0, TOKENS[:20])
    with runner.cache.reserve({0: 3}):
        logits = runner.forward([tree(0, [TOKENS[20], 9, 8], [-1, 0, 0])])[0].logits
    torch.testing.assert_close(logits[1], plain(model, [*TOKENS[:21], 9]), atol=1e-4, rtol=0)
    torch.testing.assert_close(logits[2], plain(model, [*TOKENS[:21], 8]), atol=1e-4, rtol=0)
