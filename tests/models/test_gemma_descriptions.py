"""What descriptions and files of Gemma 3n and 4 may look like, beside what transformers saves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from more_families import GEMMA3N, GEMMA4
from safetensors.torch import load_file, save_file
from tiny_models import make_model, reference_logits

from headstart.backends.torch.backend import TorchBackend, TorchStorage
from headstart.errors import CheckpointError, ConfigError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.families import config_from_hf
from headstart.models.layer_selection import select_layers
from headstart.models.weight_loading import load_decoder
from passes import BLOCK_SIZE, Rows, make_pass

TEXT = [3 + (7 * i * i + i) % 250 for i in range(40)]


def described(kind: str, settings: dict[str, Any], **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(transformers, f"{kind}TextConfig")(**settings).to_dict()
    return found | changes


def test_the_text_inside_gemma3n_is_read_and_the_rest_left_out(tmp_path: Path) -> None:
    """Released files hold keys and values of layers that make none, and encoders."""
    reference = make_model("gemma3n_text")
    reference.save_pretrained(tmp_path)
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    for part in ("k_proj", "v_proj", "k_norm"):
        own = tensors[f"model.language_model.layers.1.self_attn.{part}.weight"]
        tensors[f"model.language_model.layers.5.self_attn.{part}.weight"] = own + 1
    tensors["model.vision_tower.timm_model.stem.weight"] = torch.zeros(3)
    tensors["model.audio_tower.layers.0.weight"] = torch.zeros(3)
    tensors["model.embed_audio.embedding.weight"] = torch.zeros(3)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((tmp_path / "config.json").read_text())
    outside = {"model_type": "gemma3n", "text_config": text, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(outside))
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    assert config.head.tied
    backend = TorchBackend(config, weights)
    blocks = -(-len(TEXT) // BLOCK_SIZE)
    batch = make_pass([Rows(TEXT, 0, range(blocks))])
    logits = backend.forward(batch, backend.allocate_cache(blocks, BLOCK_SIZE)).logits
    assert (logits - reference_logits(reference, TEXT)).abs().max().item() <= 1e-4


def test_shared_layers_take_no_room() -> None:
    """Of six layers two read what others keep."""
    config = config_from_hf(described("Gemma4", GEMMA4))
    assert [layer.reads for layer in config.layers] == [None, None, None, None, 2, 3]
    narrow, wide = 2 * 2 * 16, 2 * 2 * 32
    storage = TorchStorage(config, 1, BLOCK_SIZE, torch.float32, torch.device("cpu"))
    assert storage.nbytes == 4 * BLOCK_SIZE * 2 * (narrow + wide)
    assert storage.layers[5].pages.data_ptr() == storage.layers[3].pages.data_ptr()


def test_gemma4_says_sizes_of_heads_in_two_ways() -> None:
    settings = GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    listed = described("Gemma4", settings)
    told = {key: value for key, value in listed.items() if key != "per_layer_config"}
    told |= {"global_head_dim": 32, "num_global_key_value_heads": 1}
    assert config_from_hf(told) == config_from_hf(listed)


@pytest.mark.parametrize(
    ("kind", "settings", "change", "said"),
    [
        ("Gemma3n", GEMMA3N, {"altup_active_idx": 1}, "altup_active_idx"),
        ("Gemma3n", GEMMA3N, {"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
        ("Gemma3n", GEMMA3N, {"activation_sparsity_pattern": [1.0] * 6}, "activation_sparsity_pattern"),
        ("Gemma3n", GEMMA3N, {"intermediate_size": [72]}, "intermediate_size"),
        ("Gemma4", GEMMA4, {"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ("Gemma4", GEMMA4, {"per_layer_config": {"1": {"rope_theta": 3}}}, "per_layer_config"),
        ("Gemma4", GEMMA4, {"per_layer_config": {"1": {"head_dim": 32}}}, "per_layer_config"),
        ("Gemma4", GEMMA4, {"per_layer_config": 3}, "per_layer_config"),
        ("Gemma4", GEMMA4, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("Gemma4", GEMMA4, {"enable_moe_block": True}, "num_experts"),
    ],
)
def test_what_is_not_described_is_refused(
    kind: str, settings: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        config_from_hf(described(kind, settings) | change)


def test_layers_are_chosen_with_those_that_they_read(tmp_path: Path) -> None:
    make_model("gemma4_text").save_pretrained(tmp_path)
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    chosen, _ = select_layers(config, weights, [0, 3, 5])
    assert [(layer.reads, layer.input) for layer in chosen.layers] == [(None, 0), (None, 3), (1, 5)]
    with pytest.raises(ConfigError, match="layer 5 reads the keys and values of layer 3"):
        select_layers(config, weights, [0, 5])
