"""Tiny random models of types that transformers runs, and directories that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_checkpoint import write_tokenizer
from tiny_configs import OVERRIDES, SMALL
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

from headstart_integrations.transformers.backend import TransformersBackend
from headstart_integrations.transformers.description import described


def tiny_model(kind: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """With weights large enough that every part of it shows in the logits."""
    usual = CONFIG_MAPPING[kind]()
    settings = {name: value for name, value in SMALL.items() if _has(usual, name)} | OVERRIDES.get(kind, {}) | changes
    config = CONFIG_MAPPING[kind](**{name: value for name, value in settings.items() if value is not None})
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def _has(config: object, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # what differs from layer to layer is there, too
        return True


def foreign_backend(model: PreTrainedModel) -> TransformersBackend:
    return TransformersBackend(model, described(model.config, {}, model.config.model_type))


def write_foreign(model: PreTrainedModel, directory: Path) -> Path:
    """As a hub would hold it, with a tokenizer of bytes."""
    logging.disable_progress_bar()
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """What transformers says, without a cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]
