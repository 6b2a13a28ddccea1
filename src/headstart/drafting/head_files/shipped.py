"""Trained heads that are installed, found by the target that they were trained for.

A package brings heads by an entry point in the group ``headstart.heads``, whose value is the name of a package with a
directory for each head (``heads/`` in a checkout of Headstart has those of the default model).

A head guesses for whatever says much the same as its target: the same weights in another file or quantisation, a
fine-tuned model of the same shape. So it is found by shape and vocabulary; whether it pays, a planner measures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart.common.installed import installed_points
from headstart.drafting.heads.files import RECORD_KEY
from headstart.models.config import ModelConfig

GROUP = "headstart.heads"
_CHECKOUT = Path(__file__).parents[3] / "heads" / "src"
"""Of the checkout that this file lies in, if it does: its heads need no installation."""

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


@cache
def head_folders() -> tuple[Path, ...]:
    """Folders that hold a directory for each head: those of installed packages, which are not imported, and those of
    the checkout that runs."""
    specs = [find_spec(point.value) for point in installed_points(GROUP) if point.value.isidentifier()]
    installed = [Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return tuple(sorted({path.resolve() for path in (*installed, *_CHECKOUT.glob("headstart_heads_*"))}))


def shipped_heads(target: TargetIdentity, folders: Iterable[Path] | None = None) -> ShippedHeads:
    """The heads for a target: of several of a kind, one that was trained for its very weights.

    Args:
        folders: each with a directory for each head; None: ``head_folders``.
    """
    folders = head_folders() if folders is None else folders
    found: dict[str, ShippedHead] = {}
    near: dict[str, str] = {}
    for path in sorted(path for folder in folders for path in folder.glob("*/config.json")):
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
