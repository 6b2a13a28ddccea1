"""What Ollama's clients are told of the models that there are."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from headstart.entrypoints.outline import Outline
from headstart.models.checkpoint import Checkpoint
from headstart.models.config import ModelConfig
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer
from headstart_server.infill_tokens import InfillTokens
from headstart_server.model_files import ModelFiles
from headstart_server.models import ListedModel

VERSION = "0.12.11"
"""Of Ollama, whose API this is: clients ask whether it is new enough for them."""
_NEVER = datetime(2318, 1, 1, tzinfo=UTC)
"""When a model expires that stays; what Ollama says, too, lies centuries ahead."""
_SHOWN_VALUES = 64
"""Entries of a model's metadata that are longer are left out, as Ollama does."""


def tags(listed: Sequence[ListedModel]) -> dict[str, Any]:
    """``GET /api/tags``: all models."""
    return {"models": [_entry(each) for each in listed]}


def running(listed: Sequence[ListedModel]) -> dict[str, Any]:
    """``GET /api/ps``: those that are loaded."""
    told = []
    for each in listed:
        if each.served is None:
            continue
        llm = each.served.llm
        entry = _entry(each)
        del entry["modified_at"]
        on_card = llm.memory.total if llm.model.device.type != "cpu" else 0
        told.append(
            entry
            | {
                "size": llm.memory.total,
                "size_vram": on_card,
                "context_length": llm.engine.limits.max_context,
                "expires_at": _moment(each.expires),
            }
        )
    return {"models": told}


def shown(listed: ListedModel, verbose: bool) -> dict[str, Any]:
    """``POST /api/show``: what a model's files say of it. Reads them where it is not loaded; runs on a thread.

    Raises:
        HeadstartError: they cannot be read.
    """
    opened: Outline | Any = Outline.open(listed.model) if listed.served is None else listed.served.llm.model
    template: ChatTemplate = opened.chat_template
    checkpoint, config, files = opened.checkpoint, opened.config, ModelFiles.of(listed.model)
    return {
        "modelfile": f"FROM {listed.name}\n",
        "parameters": "",
        "template": template.default or "",
        "details": _details(checkpoint, config),
        "model_info": dict(_info(checkpoint, config, verbose)),
        "capabilities": _capabilities(opened.tokenizer, template, checkpoint),
        "modified_at": _moment(files.modified),
    }


def _capabilities(tokenizer: Tokenizer, template: ChatTemplate, checkpoint: Checkpoint) -> list[str]:
    found = ["completion"]
    if template.knows_tools:
        found.append("tools")
    if InfillTokens.of(tokenizer, checkpoint.metadata if checkpoint.kind == "gguf" else {}) is not None:
        found.append("insert")
    text = template.default or ""
    if any(mark in text for mark in ("enable_thinking", "<think>", "reasoning_content")):
        found.append("thinking")
    return found


def _info(checkpoint: Checkpoint, config: ModelConfig, verbose: bool) -> Iterator[tuple[str, Any]]:
    family = config.family
    yield "general.architecture", family
    yield "general.parameter_count", _parameters(checkpoint)
    yield f"{family}.context_length", config.max_positions
    yield f"{family}.embedding_length", config.hidden_size
    yield f"{family}.block_count", config.num_layers
    yield f"{family}.attention.head_count", config.num_heads
    yield f"{family}.attention.head_count_kv", config.num_kv_heads
    if checkpoint.kind == "gguf":
        for name, value in checkpoint.metadata.items():
            if isinstance(value, str | int | float) or (isinstance(value, list) and len(value) <= _SHOWN_VALUES):
                yield name, _finite(value)
            else:
                yield name, _finite(value) if verbose and isinstance(value, list) else None


def _finite(value: Any) -> Any:
    """As JSON can say it."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parameters(checkpoint: Checkpoint) -> int:
    return sum(math.prod(shape) for shape in checkpoint.shapes().values())


def _entry(listed: ListedModel) -> dict[str, Any]:
    files = ModelFiles.of(listed.model)
    model = None if listed.served is None else listed.served.llm.model
    details = _unread(files) if model is None else _details(model.checkpoint, model.config)
    return {
        "name": listed.name,
        "model": listed.name,
        "modified_at": _moment(files.modified),
        "size": files.nbytes,
        "digest": files.digest,
        "details": details,
    }


def _unread(files: ModelFiles) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf" if files.gguf else "safetensors",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }


def _details(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Any]:
    count = _parameters(checkpoint)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
    return {
        "parent_model": "",
        "format": "gguf" if checkpoint.kind == "gguf" else "safetensors",
        "family": config.family,
        "families": [config.family],
        "parameter_size": size,
        "quantization_level": checkpoint.quantization or "unquantized",
    }


def _moment(seconds: float | None) -> str:
    """A time, as RFC 3339 has it; None: in centuries."""
    at = _NEVER if seconds is None else datetime.fromtimestamp(min(seconds, time.time() + 1e9), UTC)
    return at.isoformat().replace("+00:00", "Z")
