"""Families that need nothing of the native pass that it does not have run there, with the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_latent import write_latent
from model_document import widened

from headstart.backend import Backend
from headstart.backends.native.backend import NativeBackend, supports
from headstart.backends.native.formats import BF16, EIGHT, KINDS, LINEARS, OWN, linears_of, nearest_forms
from headstart.backends.native.loader import load_library
from headstart.backends.torch.backend import TorchBackend
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
    *("deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "glm4_moe_lite", "mistral4", "youtu", "minicpm3"),
    *("bloom", "mpt", "falcon", "falcon-alibi"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe", "nanochat", "cohere", "phi", "persimmon", "stablelm", "stablelm-parallel"),
    *("lfm2", "lfm2-long", "lfm2_moe", "lfm3", "lfm3-plain"),
    *("cohere2", "gptj", "codegen", "afmoe", "llama4", "ministral3", "dbrx", "qwen3_vl_moe"),
    *("gemma4_unified", "gemma4_text", "gemma4", "gemma4_text-experts"),
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
        ("apertus", "activation xielu"),
        ("jamba", "Mamba's state spaces"),
    ],
)
def test_what_it_lacks_is_said(family: str, lacking: str, tmp_path: Path) -> None:
    make_model(family).save_pretrained(tmp_path)
    config, _ = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert supports(config) == f"PyTorch alone has {lacking}"


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kind", ["Q5_0", "Q8_0"])
def test_gguf_files_of_latent_attention_keep_their_blocks(kind: str, joint: bool, tmp_path: Path) -> None:
    """Heads' matrices, too; older files hold those of keys and values in one, of which the values' rows are kept."""
    sizes = widened(MORE_FAMILIES["deepseek_v2"][1]) | {"first_k_dense_replace": 3, "topk_method": "greedy"}
    path = write_latent(make_model("deepseek_v2", **sizes), tmp_path / "tiny.gguf", joint, kind)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    batch = make_pass([Rows([3 + (7 * i * i + i) % 250 for i in range(50)], 0, range(2))])

    def logits(backend: Backend) -> torch.Tensor:
        return backend.forward(batch, backend.allocate_cache(2, KEYS)).logits

    expected = logits(TorchBackend(config, weights, torch.float32))
    kept, in_bf16 = (NativeBackend(config, weights, each, 2) for each in ("nearest", "bf16"))
    off, bf16_off = ((logits(each) - expected).norm().item() for each in (kept, in_bf16))
    assert off < bf16_off < 0.05 * expected.norm().item()
    matrices = linears_of(weights.layers[0])
    forms = nearest_forms(weights, load_library().multiplies_bytes)[: len(matrices)]  # type: ignore[union-attr]
    key_up, value_up, _ = forms[len(LINEARS) :, 0].tolist()
    held = {OWN + KINDS[kind], EIGHT}
    assert value_up in held
    assert key_up == BF16 if joint else key_up in held
