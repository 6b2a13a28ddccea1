"""The decoder that is trained computes what the one that serves does, and gradients reach what is learnt."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_models import FAMILIES, make_model, save_model
from torch import Tensor

from headstart.errors import ConfigError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart_train.decoder.trainable import TrainableDecoder, attend_masked

ROWS = 24


def load(family: str, directory: Path) -> tuple[ModelConfig, DecoderWeights]:
    return load_decoder(open_checkpoint(save_model(make_model(family), directory)), torch.float32)


def causal(config: ModelConfig, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    sees = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
    window = config.layers[index].window
    if window is not None:
        sees &= ~sees.tril(-window)
    return attend_masked(q, k, v, sees[None], config)


def states(decoder: TrainableDecoder, tokens: Tensor) -> Tensor:
    positions = torch.arange(ROWS)[None]
    found: Tensor = decoder(decoder.embed(tokens[None]), positions, partial(causal, decoder.config))
    return found[0]


MORE = (
    "olmo2",
    "cohere",
    "nanochat",
    "apertus",
    "stablelm-parallel",
    "persimmon",
    "hunyuan_v1_dense",
    "opt",
    "olmoe",
    "qwen2_moe",
    "glm4_moe",
    "afmoe",
)


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_it_is_the_decoder_of_every_family(family: str, tmp_path: Path) -> None:
    """Final states through transformers' own head are transformers' logits."""
    model = make_model(family)
    config, weights = load(family, tmp_path)
    tokens = torch.randint(0, config.vocab_size, (ROWS,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens[None]).logits[0]
        logits = states(TrainableDecoder(config, weights, frozen=True), tokens) @ weights.head.weight.T
        if config.head.softcap is not None:
            logits = torch.tanh(logits / config.head.softcap) * config.head.softcap
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama-tied-biased", "qwen3", "gemma2", "gpt2", "gpt-neox"])
def test_everything_is_learnt_or_nothing(family: str, tmp_path: Path) -> None:
    config, weights = load(family, tmp_path)
    tokens = torch.arange(ROWS)
    learning, frozen = TrainableDecoder(config, weights), TrainableDecoder(config, weights, frozen=True)
    states(learning, tokens).square().sum().backward()
    assert [name for name, each in learning.named_parameters() if each.grad is None or not each.grad.any()] == []
    inputs = frozen.embed(tokens[None]).requires_grad_()
    frozen(inputs, torch.arange(ROWS)[None], partial(causal, config)).square().sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.any(-1).all()
    assert all(each.grad is None for each in frozen.parameters())


def test_what_is_learnt_can_be_taken_out_and_does_not_touch_the_original(tmp_path: Path) -> None:
    config, weights = load("qwen3", tmp_path)
    decoder = TrainableDecoder(config, weights)
    before = weights.layers[1].mixer.qkv.weight.clone()
    layers, final_norm = decoder.layer_weights()
    assert torch.equal(layers[1].mixer.qkv.weight, before)
    assert torch.equal(final_norm.weight, weights.final_norm.weight)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += 1
    assert torch.equal(weights.layers[1].mixer.qkv.weight, before)
    assert torch.equal(decoder.layer_weights()[0][1].mixer.qkv.weight, before + 1)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("bloom", "ALiBi"),
        ("gpt_oss", "attention sinks"),
        ("youtu", "latent attention"),
        ("deepseek_v4", "attention to compressed"),
        ("ministral3", "queries that"),
    ],
)
def test_what_nothing_is_trained_through_is_refused(family: str, kind: str, tmp_path: Path) -> None:
    config, weights = load(family, tmp_path)
    with pytest.raises(ConfigError, match=f"has {kind}"):
        TrainableDecoder(config, weights)
