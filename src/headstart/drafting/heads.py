"""What the drafters with a trained head share: where it comes from, and in which precision it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

from headstart.drafting.context import DraftContext
from headstart.drafting.options import require
from headstart.models.heads.loading import Head, load_head

HeadKind = TypeVar("HeadKind", bound=Head)


@dataclass(frozen=True)
class HeadOptions:
    """What every drafter with a trained head may be told."""

    model: str | None = None
    """Directory of the head: one that ``headstart train`` wrote, or an EAGLE, speculators or Medusa checkpoint; None:
    the head that comes with Headstart for the target."""
    draft_tokens: int = 5
    """Depth of a draft at most."""
    tree_nodes: int = 15
    """Nodes of a draft at most (with the root one tile of 16 rows)."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the head's matrices; auto: bf16 where the processor multiplies it, else fp32."""

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "tree_nodes"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}; it must be 1 or more.")

    @property
    def dtype(self) -> torch.dtype:
        fast = self.precision == "auto" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        return torch.bfloat16 if self.precision == "bf16" or fast else torch.float32


def open_head(context: DraftContext, model: str | None, name: str, kind: type[HeadKind]) -> HeadKind:
    """The head in the directory ``model``, or the one that comes with Headstart.

    Args:
        name: what the head is called where it is trained: ``headstart train NAME``.

    Raises:
        ConfigError: none is named and none comes with Headstart, or one of another kind than the drafter's.
        CheckpointError: its files are missing, damaged, or made for another target.
    """
    if model is None and context.find_head is not None and (found := context.find_head(name)) is not None:
        model = str(found)
    require(
        bool(model),
        f"model is {model!r}, and no {name} head comes with Headstart for this target; "
        f"name the directory of a trained head (headstart train {name} makes one).",
    )
    head = load_head(model or "", context.require_runner().backend.config)
    require(
        isinstance(head, kind),
        f"model {model!r} is a {type(head).__name__}, but this drafter runs a {kind.__name__}.",
    )
    assert isinstance(head, kind)
    return head
