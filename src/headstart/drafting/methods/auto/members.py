"""Whom the planner asks: those that its options name, or what is there for the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from headstart.drafting.base import Drafter
from headstart.drafting.context import DraftContext
from headstart.drafting.head_files.loading import head_place, kind_in
from headstart.drafting.options import check_files, parse_options, require
from headstart.drafting.registry import drafter_options, names_modules
from headstart.errors import HeadstartError

FREE = "suffix"
_HEADS = ("eagle3", "dflash", "p-eagle", "assistant")
"""Kinds of heads that are run where nobody names drafters; of several that come with Headstart, the first."""
ITSELF = "self"
"""Runs the target's own weights in fewer bits, where nothing else guesses for it and that pays."""
_MODULES = "mtp"
"""Runs what came with the target, where no head does."""


@dataclass(frozen=True)
class AutoOptions:
    drafters: str | None = None
    """Names of the drafters, with + between them. With a single name, the planner chooses how many of its guesses are
    verified. None: a drafter that copies from the text and, if one comes with Headstart for the target, a trained head,
    else the multi-token modules of the target's checkpoint, if it has any, else the target's own weights in four bits,
    if it is computed in eight or more and that pays; which guess while few sequences are decoded at once."""
    model: str | None = None
    """Directory of a head, or name of a model, for those drafters that run one. If ``drafters`` is left out: an
    EAGLE-3, P-EAGLE or DFlash head, or multi-token modules, to use instead of what comes with Headstart or the
    model."""
    drafter_options: dict[str, object] = field(default_factory=dict)
    """Name of a drafter -> dictionary of its options."""

    def __post_init__(self) -> None:
        names = self.names or [FREE, *_HEADS, _MODULES]
        require(all(names), f"drafters is {self.drafters!r}; give names with + between them, like 'suffix+recycling'.")
        require(len(set(names)) == len(names), f"drafters is {self.drafters!r}; name each drafter once.")
        require("auto" not in names, f"drafters is {self.drafters!r}; auto cannot plan for itself, leave it out.")
        for name, options in self.drafter_options.items():
            require(
                name in names and isinstance(options, Mapping),
                f"drafter_options has {name!r}: {options!r}; give a dictionary of options of one of {names}.",
            )

    @property
    def names(self) -> list[str]:
        """The names in ``drafters``; empty if it is None."""
        return [] if self.drafters is None else [name.strip() for name in self.drafters.split("+")]

    @property
    def head(self) -> str:
        """Who runs what ``model``, or the options of one kind of head, name where ``drafters`` is left out."""
        if self.model is not None and names_modules(self.model):
            return _MODULES
        told = [(kind, self.of(kind).get("model")) for kind in _HEADS]
        held = [kind for kind, model in told if model is not None and kind_in(head_place(str(model))) == kind]
        return next(iter(held), _HEADS[0])

    def of(self, name: str) -> dict[str, object]:
        """The options of one of the drafters."""
        options = self.drafter_options.get(name, {})
        assert isinstance(options, Mapping)
        runs_one = self.model is not None and any(each.name == "model" for each in fields(drafter_options(name)))
        return ({"model": self.model} if runs_one else {}) | dict(options)

    def check_files(self) -> None:
        """Check that the files which the drafters' options name exist, as ``options.check_files`` does."""
        for name in self.names or [FREE, self.head]:
            check_files(parse_options(drafter_options(name), name, self.of(name)))


def found_drafters(context: DraftContext, options: AutoOptions) -> list[str]:
    """Names of the drafters that are asked where options name none."""
    if any("model" in options.of(kind) for kind in _HEADS):
        return [FREE, options.head]
    find = context.find_head
    found = None if find is None else next((kind for kind in _HEADS if find(kind) is not None), None)
    if found is None and _has_modules(context):
        found = _MODULES
        context.tell("Multi-token modules guess for this model, which has no head.")
    return [FREE] if found is None else [FREE, found]


def small_model(context: DraftContext, create: Callable[[DraftContext, str], Drafter]) -> Drafter | None:
    """What ``create`` makes of a small model of the target's tokenizer that is at hand; None: there is none, or it does
    not fit in memory. Told either way."""
    if context.find_head is None:
        return None
    small = None if context.find_sibling is None else context.find_sibling()
    if small is not None:
        try:
            drafter = create(context, str(small.path))
        except HeadstartError as error:
            context.tell(f"The small model {small.where} is not used: {error}")
        else:
            context.tell(
                f"Drafting with {small.where}, a small model of the same tokenizer, since no head and no multi-token "
                "module guesses for this model (--drafter none, or another, leaves that out)."
            )
            return drafter
    context.tell("No head and no multi-token module guesses for this model; headstart drafters --model lists more.")
    return None


def _has_modules(context: DraftContext) -> bool:
    """Whether the model has multi-token modules; those that are damaged, nobody has asked for."""
    if context.lend_modules is None:
        return False
    try:
        return context.lend_modules(None) is not None
    except HeadstartError as error:
        context.tell(f"The model's multi-token modules are not used: {error}")
        return False
