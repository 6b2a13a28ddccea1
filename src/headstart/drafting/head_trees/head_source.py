"""What the drafters with a trained head share: where it comes from, and in which precision it runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from headstart.drafting.base import DraftBudget
from headstart.drafting.context import DraftContext
from headstart.drafting.head_files.loading import check_format, head_place, load_head, trained_for
from headstart.drafting.head_files.shipped import head_folders
from headstart.drafting.head_trees.trees import ConfidenceTrees, path_bounds
from headstart.drafting.heads.formats import TrainedHead
from headstart.drafting.heads.head_pass import PathBounds
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.method import HeadPasses, RunsHead
from headstart.drafting.options import require
from headstart.drafting.registry import trained_kinds
from headstart.errors import ConfigError
from headstart.passes.backend import BackendKit

HeadKind = TypeVar("HeadKind", bound=TrainedHead)


@dataclass(frozen=True)
class HeadOptions:
    """What every drafter with a trained head may be told."""

    model: str | None = None
    """Directory of the head: one that ``headstart train`` wrote, or an EAGLE, P-EAGLE, DFlash, speculators or Medusa
    checkpoint;
    None: the head that comes with Headstart for the target."""
    draft_tokens: int = 5
    """Depth of a draft at most."""
    tree_nodes: int = 15
    """Nodes of a draft at most (with the root one tile of 16 rows)."""
    precision: Literal["auto", "fp32", "bf16", "int8", "int8-fast", "int4", "int4-fast"] = "auto"
    """Of the head's matrices, whatever the target's; auto: what the native pass reads fastest (guesses need not be
    exact: int4-fast), else bf16 where the processor multiplies it, else fp32."""

    def __post_init__(self) -> None:
        for name in ("draft_tokens", "tree_nodes"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}; it must be 1 or more.")

    def check_files(self) -> None:
        """As ``options.check_files`` has it."""
        check_head(self.model)


@dataclass(frozen=True)
class ReadingOptions(HeadOptions):
    """What drafters may be told whose head reads along with the text."""

    window: int | None = None
    """Positions of the text that the head looks back over: older ones are neither read nor kept, so that long texts
    cost no more than short ones, and are guessed as well. Rows are freed in blocks, so it may see some tens more. 0: as
    far as its layers see. None: what its files name (the longest texts that it was trained on), else likewise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        window = self.window
        require(not window or window >= 1, f"window is {window}; it must be 1 or more, or 0 for all of the text.")

    def window_of(self, head: TrainedHead, reach: int | None) -> int | None:
        """Rows that are kept of a text; ``reach``: how far back the head's layers see, None: over all of it."""
        wanted = head.window if self.window is None else self.window
        return min([each for each in (wanted, reach) if each], default=None)


_MIN_PROBABILITY, _MIN_PROBABILITY_IN_TILES = 0.1, 0.03
"""Probability of a path that is worth its row where rows cost a twentieth of a plain step; and where a matrix unit
takes sixteen for one."""


@dataclass(frozen=True)
class ConfidenceOptions(HeadOptions):
    """What drafters may be told whose trees grow where a head is sure."""

    width: int = 6
    """Nodes of a level that get children, and children of each of them."""
    min_probability: float | None = None
    """A guess is left out where the head holds its path for less likely than this, and gets no children where it holds
    it for less likely than this to the power of 2/3: rows and steps cost more than such guesses bring. 0 keeps all;
    None: what the planner finds worth a row; without a planner 0.1, on a matrix unit 0.03."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.width >= 1, f"width is {self.width}; it must be 1 or more.")
        lowest = self.min_probability
        require(lowest is None or 0 <= lowest < 1, f"min_probability is {lowest}; it must lie in [0, 1), 0 keeps all.")

    def min_probability_of(self, budgets: Sequence[DraftBudget], kit: BackendKit) -> float:
        """The least probability of a path in a round with these budgets; ``kit``: the target's."""
        if self.min_probability is not None:
            return self.min_probability
        alone = _MIN_PROBABILITY_IN_TILES if kit.has_cheap_rows else _MIN_PROBABILITY
        return min([each.min_probability for each in budgets if each.min_probability is not None], default=alone)

    def bounds_of(self, budgets: Sequence[DraftBudget], kit: BackendKit) -> PathBounds:
        """Of a round with these budgets."""
        return path_bounds(self.min_probability_of(budgets, kit))

    def new_trees(self, budgets: Sequence[DraftBudget], kit: BackendKit) -> ConfidenceTrees:
        """Trees that have not grown yet, one for each budget."""
        return ConfidenceTrees(len(budgets), self.width, self.bounds_of(budgets, kit))


@dataclass(frozen=True)
class SpeakingOptions(ConfidenceOptions, ReadingOptions):
    """What drafters may be told whose head may say more than its vocabulary."""

    text_vocabulary: int = 512
    """Tokens of the text that its vocabulary lacks and that it may say all the same, at most; 0: none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.text_vocabulary >= 0, f"text_vocabulary is {self.text_vocabulary}; it must be 0 or more.")


def run_head(
    context: DraftContext, passes: HeadPasses[RunsHead], head: TrainedHead, tables: TargetTables, precision: str
) -> RunsHead:
    """As ``BackendKit.run``; where it runs is told."""
    kit = context.require_runner().backend.kit
    running = kit.run(passes, head, tables, precision)
    tell_place(context, head, kit.where(passes, head))
    return running


def tell_place(context: DraftContext, head: TrainedHead, where: str) -> None:
    """Tell what runs a head, and why it does where nobody has named it."""
    named = f"The {head.kind} head runs in {where}."
    context.tell(f"{head.found}, in {where}; name another as draft model." if head.found else named)


def check_head(model: str | None) -> None:
    """Find out early that the directory ``model`` holds no head.

    Raises:
        CheckpointError: it has no description, a damaged one, or that of something else.
    """
    if model:
        check_format(head_place(model))


def open_head(
    context: DraftContext, model: str | None, name: str, kind: type[HeadKind], others: Sequence[str] = ()
) -> HeadKind:
    """The head in the directory ``model``, or the one that comes with Headstart.

    Args:
        name: what the head is called where it is trained: ``headstart train NAME``.
        others: names of heads that can be run like it.

    Raises:
        ConfigError: none is named and none comes with Headstart, or one of another kind than the drafter's.
        CheckpointError: its files are missing, damaged, or made for another target.
    """
    if model is None and context.stand_in is not None:
        made = context.stand_in()
        assert isinstance(made, kind)
        return made
    shipped = context.find_head(name) if model is None and context.find_head is not None else None
    model = model if shipped is None else str(shipped[0])
    if not model:
        made = name in trained_kinds()
        raise ConfigError(
            f"no {name} head is installed for this target; name the directory of one as the draft model "
            + (f"(headstart train {name} makes one)" if made else "(its publisher's)")
            + ("." if head_folders() else "; the default model's is installed by `pip install ./heads` in a checkout.")
        )
    head = load_head(model, context.require_runner().backend.config)
    require(
        head.kind in (name, *others),
        f"{model} holds another head ({head.kind} head) than this drafter runs ({name} head).",
    )
    assert isinstance(head, kind)
    head.found = "" if shipped is None else shipped[1]
    target = None if shipped is not None else trained_for(head_place(model))
    if target is not None and context.digest is not None and target[1] != context.digest():
        warnings.warn(
            f"{model} was trained for {target[0]}, whose weights are not this target's: it may guess badly.",
            stacklevel=2,
        )
    return head
