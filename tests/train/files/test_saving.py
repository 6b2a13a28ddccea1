"""Derived models: the layers asked for, and a folder that Headstart and transformers read alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from tiny_models import make_model, reference_logits
from tiny_models import save_model as save_reference
from torch import Tensor
from transformers import AutoModelForCausalLM

from headstart.backends.torch.backend import TorchBackend
from headstart.errors import CheckpointError, ConfigError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig, RopeConfig
from headstart.models.layer_selection import select_layers
from headstart.models.rope_frequencies import inverse_frequencies
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights
from headstart_train.files.models import save_model
from passes import BLOCK_SIZE, Rows, make_pass

WRITABLE = [
    "llama",
    "llama-tied-biased",
    "llama3",
    "llama-linear",
    "mistral",
    "mistral-full",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "qwen3-yarn",
    "smollm3",
]
TOKENS = [3 + (7 * i) % 90 for i in range(21)]


def load(family: str, dtype: torch.dtype = torch.float32) -> tuple[ModelConfig, DecoderWeights]:
    with TemporaryDirectory() as directory:
        return load_decoder(open_checkpoint(save_reference(make_model(family), Path(directory))), dtype)


def logits_of(config: ModelConfig, weights: DecoderWeights) -> Tensor:
    backend = TorchBackend(config, weights)
    batch = make_pass([Rows(TOKENS, 0, range(6))])
    return backend.forward(batch, backend.allocate_cache(6, BLOCK_SIZE)).logits


@pytest.mark.parametrize("family", WRITABLE)
def test_a_written_model_is_read_by_headstart_and_transformers(family: str, tmp_path: Path) -> None:
    config, weights = select_layers(*load(family), [0, 1, 3])
    save_model(config, weights, tmp_path)
    expected = logits_of(config, weights)

    again_config, again = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert again_config == config
    assert torch.equal(logits_of(again_config, again), expected)

    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert reference.dtype == torch.float32
    assert (expected - reference_logits(reference, TOKENS)).abs().max().item() <= 1e-4


def test_selected_layers_are_the_targets_own_tensors() -> None:
    config, weights = load("qwen3")
    small_config, small = select_layers(config, weights, [2, 0])
    assert small_config.layers == (config.layers[2], config.layers[0])
    assert small.layers[0] is weights.layers[2]
    assert small.embedding is weights.embedding


@pytest.mark.parametrize("layers", [[], [4], [-1, 0]])
def test_only_the_models_layers_can_be_selected(layers: list[int]) -> None:
    with pytest.raises(ConfigError, match="0 to 3"):
        select_layers(*load("llama"), layers)


def test_bfloat16_is_written_as_such(tmp_path: Path) -> None:
    config, weights = load("llama-tied-biased", torch.bfloat16)
    save_model(config, weights, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.metadata["dtype"] == "bfloat16"
    assert "lm_head.weight" not in checkpoint.shapes()
    assert torch.equal(checkpoint.read("model.embed_tokens.weight"), weights.embedding)


def test_the_table_of_llama3_becomes_its_settings(tmp_path: Path) -> None:
    config, weights = load("llama")
    plain = RopeConfig(500_000.0, 6)
    scaling: dict[str, float | int | str] = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    scaled = replace(plain, scaling=scaling)
    config = replace(config, ropes=(plain,))
    weights = replace(weights, rope_factors=inverse_frequencies(plain) / inverse_frequencies(scaled))
    save_model(config, weights, tmp_path)
    again, _ = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert again.ropes == (scaled,)

    odd = replace(weights, rope_factors=torch.tensor([1.0, 5.0, 2.0]))
    with pytest.raises(CheckpointError, match="rotary factors"):
        save_model(config, odd, tmp_path)


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "gpt-neox"])
def test_other_families_are_refused(family: str, tmp_path: Path) -> None:
    config, weights = load(family)
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_model(config, weights, tmp_path / "new")
    assert not (tmp_path / "new").exists()
