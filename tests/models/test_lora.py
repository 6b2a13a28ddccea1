"""LoRA adapters merged into their model: against the sum written out, in transformers' own model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import make_model, reference_logits, save_model
from torch import Tensor
from transformers import PreTrainedModel

from headstart.backends.torch.backend import TorchBackend
from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.lora import read_folder
from headstart.models.weight_loading import load_decoder
from headstart.passes.runner import ModelRunner, Span

RANK = 3
TOKENS = [5, 17, 3, 99, 42, 7, 64]
SETTINGS = {"peft_type": "LORA", "r": RANK, "lora_alpha": 6, "target_modules": ["q_proj", "down_proj"], "bias": "none"}


def adapter(
    directory: Path, model: PreTrainedModel, modules: dict[str, float], pickled: bool = False, **settings: Any
) -> Path:
    """A random adapter of these modules (name -> scale), whose sums are put into ``model``."""
    directory.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    transposed = settings.get("fan_in_fan_out", False)
    tensors: dict[str, Tensor] = {}
    state = model.state_dict()
    for module, scale in modules.items():
        weight = state[f"{module}.weight"]
        outputs, inputs = weight.shape[::-1] if transposed else weight.shape
        embeds = "embed" in module
        first = torch.randn(RANK, outputs if embeds else inputs, generator=generator)
        second = torch.randn(inputs if embeds else outputs, RANK, generator=generator) * 0.2
        infix = "lora_embedding_" if embeds else "lora_"
        tensors[f"base_model.model.{module}.{infix}A" + ("" if embeds else ".weight")] = first
        tensors[f"base_model.model.{module}.{infix}B" + ("" if embeds else ".weight")] = second
        change = scale * (second @ first)
        weight.add_(change.T if embeds or transposed else change)
    (directory / "adapter_config.json").write_text(json.dumps(SETTINGS | settings))
    if pickled:
        torch.save(tensors, directory / "adapter_model.bin")
    else:
        save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def logits(model: Path, lora: Path) -> Tensor:
    backend = TorchBackend(*load_decoder(open_checkpoint(model, lora=lora), torch.float32))
    runner = ModelRunner(backend, 64)
    runner.cache.add(0)
    with runner.cache.reserve({0: len(TOKENS)}):
        return runner.forward([Span.chain(0, TOKENS)])[0].logits


QWEN = {"model.layers.0.self_attn.q_proj": 2.0, "model.layers.2.mlp.down_proj": 2.0}


@pytest.mark.parametrize(
    ("family", "modules", "settings"),
    [
        ("qwen3", QWEN, {}),
        ("qwen3", QWEN, {"pickled": True}),
        ("qwen3", dict.fromkeys(QWEN, 6 / RANK**0.5), {"use_rslora": True}),
        ("qwen3", QWEN | {"model.layers.2.mlp.down_proj": 3.0}, {"alpha_pattern": {"down_proj": 9}}),
        ("qwen3", {"model.embed_tokens": 2.0}, {}),
        ("gpt2", {"transformer.h.1.attn.c_attn": 2.0, "transformer.h.2.mlp.c_proj": 2.0}, {"fan_in_fan_out": True}),
        ("phi3", {"model.layers.1.self_attn.qkv_proj": 2.0, "model.layers.1.mlp.gate_up_proj": 2.0}, {}),
    ],
)
def test_a_model_with_an_adapter_is_the_model_with_the_sum(
    tmp_path: Path, family: str, modules: dict[str, float], settings: dict[str, Any]
) -> None:
    model = make_model(family)
    save_model(model, tmp_path / "model")
    before = reference_logits(model, TOKENS)
    lora = adapter(tmp_path / "lora", model, modules, **settings)
    wanted = reference_logits(model, TOKENS)
    assert not torch.allclose(before, wanted, atol=1e-2)
    torch.testing.assert_close(logits(tmp_path / "model", lora), wanted, atol=1e-4, rtol=1e-4)


def test_modules_that_were_saved_whole_take_the_models_place(tmp_path: Path) -> None:
    model = make_model("qwen3")
    save_model(model, tmp_path / "model")
    lora = adapter(tmp_path / "lora", model, QWEN)
    head = torch.randn_like(model.lm_head.weight)
    model.lm_head.weight.data.copy_(head)
    from safetensors.torch import load_file

    tensors = load_file(lora / "adapter_model.safetensors")
    save_file(tensors | {"base_model.model.lm_head.weight": head}, lora / "adapter_model.safetensors")
    torch.testing.assert_close(logits(tmp_path / "model", lora), reference_logits(model, TOKENS), atol=1e-4, rtol=1e-4)


def test_another_adapter_is_another_model(tmp_path: Path) -> None:
    model = make_model("qwen3")
    save_model(model, tmp_path / "model")
    lora = adapter(tmp_path / "lora", model, QWEN)
    other = adapter(tmp_path / "other", model, QWEN, lora_alpha=7)
    digests = {open_checkpoint(tmp_path / "model", lora=each).digest() for each in (None, lora, other)}
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("modules", "settings", "message"),
    [
        (QWEN, {"peft_type": "IA3"}, "only LORA is read"),
        (QWEN, {"use_dora": True}, "asks for DoRA"),
        (QWEN, {"lora_alpha": "six"}, "must be numbers"),
        (QWEN, {"alpha_pattern": {"(": 2}}, "is no pattern"),
        ({}, {}, "holds no LoRA matrices"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    tmp_path: Path, modules: dict[str, float], settings: dict[str, Any], message: str
) -> None:
    model = make_model("qwen3")
    save_model(model, tmp_path / "model")
    lora = adapter(tmp_path / "lora", model, modules, **settings)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "model", lora=lora)


def test_another_models_adapter_is_refused(tmp_path: Path) -> None:
    save_model(make_model("qwen3"), tmp_path / "model")
    lora = adapter(tmp_path / "lora", make_model("gpt2"), {"transformer.h.1.attn.c_attn": 1.0}, fan_in_fan_out=True)
    with pytest.raises(CheckpointError, match=r"adapts 'transformer\.h\.1\.attn\.c_attn', which this model does not"):
        open_checkpoint(tmp_path / "model", lora=lora)
    wide = adapter(tmp_path / "wide", make_model("qwen3", hidden_size=48), QWEN)
    with pytest.raises(CheckpointError, match="give the adapter of this very model"):
        open_checkpoint(tmp_path / "model", lora=wide)
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        open_checkpoint(tmp_path / "model", lora=tmp_path)


def test_an_adapter_alone_is_refused_with_the_mend(tmp_path: Path) -> None:
    lora = adapter(tmp_path / "lora", make_model("qwen3"), QWEN)
    with pytest.raises(CheckpointError, match=r"name its model as the model .* with --lora"):
        open_checkpoint(lora)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alpha_pattern": {r"(\w|\W|.)+\d$": 2}}, "alpha_pattern takes too long"),
        ({"alpha_pattern": {"(?P<": 2}}, "is no pattern"),
        ({"lora_alpha": 10**400}, "must be numbers"),
        ({"lora_alpha": float("nan")}, "must be numbers"),
        ({"alpha_pattern": {"q_proj": 10**400}}, "must be numbers"),
        ({"use_rslora": "false"}, "use_rslora is 'false'"),
        ({"fan_in_fan_out": "no"}, "fan_in_fan_out is 'no'"),
    ],
)
def test_settings_that_make_no_scale_are_refused_at_once(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    pair = {"A": torch.ones(2, 4), "B": torch.ones(4, 2)}
    write_pair(tmp_path, pair, settings)
    with pytest.raises(CheckpointError, match=said):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ({"A": torch.ones(2, 4, dtype=torch.int64), "B": torch.ones(4, 2)}, "give floats"),
        ({"A": torch.ones(2, 4), "B": torch.ones(4, 2, dtype=torch.complex64)}, "give floats"),
        ({"A": torch.full((2, 4), 1e300, dtype=torch.float64), "B": torch.ones(4, 2)}, "not finite"),
        ({"A": torch.ones(2, 4), "B": torch.full((4, 2), 2e38)}, "not finite"),
        ({"A": torch.full((2, 4), float("nan")).to(torch.float8_e4m3fn), "B": torch.ones(4, 2)}, "not finite"),
    ],
)
def test_matrices_that_are_no_finite_floats_are_refused(pair: dict[str, Tensor], said: str, tmp_path: Path) -> None:
    write_pair(tmp_path, pair, {})
    with pytest.raises(CheckpointError, match=said):
        read_folder(tmp_path)


def write_pair(directory: Path, pair: dict[str, Tensor], settings: dict[str, Any]) -> None:
    module = "model.layers.0.self_attn.q_proj"
    save_file(
        {f"base_model.model.{module}.lora_{side}.weight": tensor for side, tensor in pair.items()},
        directory / "adapter_model.safetensors",
    )
    (directory / "adapter_config.json").write_text(json.dumps(SETTINGS | settings))
