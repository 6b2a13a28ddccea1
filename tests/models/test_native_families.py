"""Families that need nothing of the native pass that it does not have run there, with the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_document import widened

from headstart.backends.native.backend import NativeBackend, supports
from headstart.backends.native.loader import load_library
from headstart.models.checkpoint import open_checkpoint
from headstart.models.weight_loading import load_decoder
from more_families import MORE_FAMILIES
from passes import Rows, make_pass
from tiny_models import make_model, reference_logits

pytestmark = pytest.mark.skipif(load_library() is None, reason="no native path on this machine")
NATIVE = (
    "olmo-unclipped",
    "helium",
    "seed_oss",
    "ernie4_5",
    "cwm",
    "ministral",
    "hyperclovax",
    "glm",
    "glm4",
    "gemma",
    "vaultgemma",
    "mistral3",
    "qwen3_vl",
    "starcoder2",
    "biogpt",
    "gpt_neo",
    "gpt_bigcode",
    "falcon-new",
    "olmo2",
    "olmo3",
    "exaone4",
    "granite_swa",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "flex_olmo",
    "granitemoe",
    "granitemoeshared",
    "granite4-moe",
    "phimoe",
    "glm4_moe",
    "ernie4_5_moe",
    "dots1",
    "exaone_moe",
    "mellum",
    "solar_open",
    "minimax_m2",
    "gpt_oss",
    "opt",
    "arcee",
    "nemotron",
)
KEYS = 32


@pytest.mark.parametrize("family", NATIVE)
def test_logits_equal_transformers(family: str, tmp_path: Path) -> None:
    model = make_model(family, **widened(MORE_FAMILIES[family][1]))
    model.save_pretrained(tmp_path)
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert supports(config) is None
    backend = NativeBackend(config, weights, "fp32", 1)
    tokens = [3 + (7 * i * i + i) % 250 for i in range(60)]
    logits = backend.forward(make_pass([Rows(tokens, 0, range(2))]), backend.allocate_cache(2, KEYS)).logits
    assert (logits - reference_logits(model, tokens)).abs().max().item() <= 1e-4


@pytest.mark.parametrize(
    ("family", "lacking"),
    [
        ("hunyuan_v1_moe", "norms of heads of this kind"),
        ("afmoe", "a gate of attention"),
        ("bloom", "ALiBi"),
        ("apertus", "activation xielu"),
        ("deepseek_v3", "latent attention"),
        ("llama4", "attention within chunks"),
    ],
)
def test_what_it_lacks_is_said(family: str, lacking: str, tmp_path: Path) -> None:
    make_model(family).save_pretrained(tmp_path)
    config, _ = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert supports(config) == f"PyTorch alone has {lacking}"
