"""Many sequences decoded in tables of a fixed size."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from devices import DEVICES
from tiny_checkpoint import write_tiny_model

from headstart.errors import ConfigError
from headstart.loading.model import Model, load_model
from headstart.models.weight_loading import load_decoder
from headstart.passes.runner import ModelRunner, Span
from headstart_train.decoder.static_decoder import StaticDecoder

TOKENS = 24


@cache
def target() -> Model:
    return load_model(write_tiny_model(Path(mkdtemp(prefix="headstart-static-"))), "fp32")


def decoder(device: str = "cpu") -> StaticDecoder:
    config, weights = load_decoder(target().checkpoint, torch.float32)
    return StaticDecoder(config, weights, torch.device(device))


@cache
def prompts() -> list[list[int]]:
    generator = np.random.default_rng(0)
    return [generator.integers(32, 127, length).tolist() for length in (1, 5, 17, 40, 2, 33)]


def laws(text: list[int]) -> torch.Tensor:
    """Logits [token, vocab] after each token of a text, by the fp32 pass."""
    runner = ModelRunner(target().backend, len(text))
    runner.cache.add(0)
    with runner.cache.reserve({0: len(text)}):
        (output,) = runner.forward([Span.chain(0, text)])
    return output.logits


@pytest.mark.parametrize("device", DEVICES)
def test_each_says_what_it_would_say_alone(device: str) -> None:
    """By the fp32 pass, every token is the best one or next to it: products here are rounded to eight bits."""
    answers = decoder(device).decode(prompts(), [0.0] * len(prompts()), TOKENS, ends=[])
    same = []
    for prompt, answer in zip(prompts(), answers, strict=True):
        assert len(answer) == TOKENS
        logits = laws([*prompt, *answer.tolist()])[len(prompt) - 1 : -1]
        gaps = logits.max(-1).values - logits[torch.arange(TOKENS), torch.from_numpy(answer).long()]
        assert gaps.max() < 0.1 * logits.std()
        same.append(gaps == 0)
    assert torch.cat(same).float().mean() > 0.9


@pytest.mark.parametrize("device", DEVICES)
def test_an_answer_is_over_with_its_end(device: str) -> None:
    """The token that ends it is its last; others go on."""
    whole = decoder(device).decode(prompts(), [0.0] * len(prompts()), TOKENS, ends=[])
    end = int(whole[0][3])
    answers = decoder(device).decode(prompts(), [0.0] * len(prompts()), TOKENS, ends=[end])
    for answer, unended in zip(answers, whole, strict=True):
        places = np.flatnonzero(unended == end)
        expected = unended[: places[0] + 1] if len(places) else unended
        assert answer.tolist() == expected.tolist()
    assert len(answers[0]) <= 4


@pytest.mark.thorough
def test_draws_follow_the_law() -> None:
    """First tokens of many answers to one prompt, against the model's probabilities; a greedy row beside them."""
    torch.manual_seed(0)
    count, prompt = 8192, prompts()[1]
    said = decoder().decode([prompt] * count, [0.0] + [0.7] * (count - 1), 1, ends=[])
    law = (laws(prompt)[-1] / 0.7).softmax(-1)
    assert said[0].tolist() == [int(law.argmax())]
    drawn = torch.bincount(torch.tensor([int(each[0]) for each in said[1:]]), minlength=len(law)) / (count - 1)
    expected_noise = (law * (1 - law) / count).sqrt().sum() * (2 / torch.pi) ** 0.5
    assert (drawn - law).abs().sum() < 1.3 * expected_noise + 0.02


def test_what_it_cannot_run_is_refused() -> None:
    config, weights = load_decoder(target().checkpoint, torch.float32)
    windowed = replace(config, layers=tuple(replace(layer, window=4) for layer in config.layers))
    with pytest.raises(ConfigError, match="window"):
        StaticDecoder(windowed, weights, torch.device("cpu"))
