"""Trained heads that come with Headstart, found by the target that they were trained for.

A head guesses for whatever says much the same as its target: the same weights in another file or quantisation, a
fine-tuned model of the same shape. So it is found by shape and vocabulary; whether it pays, a planner measures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.heads.files import RECORD_KEY
from headstart.models.config import ModelConfig

SHIPPED = Path(__file__).parent / "weights"
"""A directory for each head."""

_SHAPE = ("family", "vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "mlp_size")


@dataclass(frozen=True)
class TargetIdentity:
    """What heads are found by."""

    shape: Mapping[str, Any]
    """See ``target_shape``."""
    digest: Callable[[], str]
    """Of the weights (``Checkpoint.digest``)."""
    vocabulary: Callable[[], str]
    """Of the tokens' spellings (``Tokenizer.fingerprint``)."""

    def record(self) -> dict[str, Any]:
        """What a head records of its target."""
        return {
            "target_digest": self.digest(),
            "target_shape": dict(self.shape),
            "target_vocabulary": self.vocabulary(),
        }


@dataclass(frozen=True)
class ShippedHead:
    """A head that fits a target."""

    directory: Path
    why: str
    """Why it is taken for one, as the rest of a sentence."""


@dataclass(frozen=True)
class ShippedHeads:
    """What was found for a target."""

    by_kind: Mapping[str, ShippedHead]
    near: Mapping[str, str]
    """Kind -> why the head that nearly fits does not, a sentence."""


def target_shape(config: ModelConfig) -> dict[str, Any]:
    """The sizes that a head's target must share, and its family."""
    return {name: getattr(config, name) for name in _SHAPE}


def shipped_heads(target: TargetIdentity, directory: Path = SHIPPED) -> ShippedHeads:
    """The heads for a target: of several of a kind, one that was trained for its very weights."""
    found: dict[str, ShippedHead] = {}
    near: dict[str, str] = {}
    for path in sorted(directory.glob("*/config.json")):
        record = json.loads(path.read_text(encoding="utf-8")).get(RECORD_KEY, {})
        kind, name = str(record.get("head")), record.get("target")
        if record.get("target_digest") == target.digest():
            found[kind] = ShippedHead(path.parent, f"trained for the weights of {name}, which this model has")
            continue
        shape = record.get("target_shape", {})
        other = [key for key in _SHAPE if shape.get(key) != target.shape.get(key)]
        same_tokens = "vocab_size" not in other and record.get("target_vocabulary") == target.vocabulary()
        if not other and same_tokens:
            found.setdefault(kind, ShippedHead(path.parent, f"trained for {name}, whose shape and vocabulary it has"))
        elif same_tokens:
            differences = " and ".join(f"{key} {shape.get(key)} (here {target.shape.get(key)})" for key in other)
            near[kind] = f"No {kind} head is used: the one for {name} wants {differences}."
        elif not set(other) - {"vocab_size"}:
            near[kind] = f"No {kind} head is used: the one for {name} wants its vocabulary, and this one is another."
    return ShippedHeads(found, {kind: why for kind, why in near.items() if kind not in found})
