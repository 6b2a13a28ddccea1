"""Random LoRA adapters for tiny models, as peft saves them, and the models that they come to when they are merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

RANK, ALPHA = 3, 6
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")


def write_adapter(
    directory: Path,
    model: Path,
    seed: int = 1,
    modules: Sequence[str] = MODULES,
    strength: float = 0.3,
    settings: Mapping[str, object] | None = None,
) -> Path:
    """An adapter of these modules of every layer of a folder's model."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.endswith(tuple(modules)):
            outputs, inputs = weight.shape
            down = torch.randn(RANK, inputs, generator=generator) * inputs**-0.5
            up = torch.randn(outputs, RANK, generator=generator) * strength
            tensors[f"base_model.model.{module}.lora_A.weight"] = down
            tensors[f"base_model.model.{module}.lora_B.weight"] = up
    directory.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": "all-linear", "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps({**config, **(settings or {})}))
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def write_merged(directory: Path, model: Path, adapter: Path, scale: float = ALPHA / RANK) -> Path:
    """The model with the products added to its matrices."""
    shutil.copytree(model, directory)
    weights, tensors = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name, down in tensors.items():
        if ".lora_A." in name:
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            weights[f"{module}.weight"] += scale * (tensors[name.replace("lora_A", "lora_B")] @ down)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
