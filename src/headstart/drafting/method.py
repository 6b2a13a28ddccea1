"""What a method of drafting says of itself: the rows that its folder adds to the tables of methods, of what can be
trained, and of formats of heads. Folders lie in ``methods/``; other packages bring theirs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, Literal, TypeVar, get_args

from headstart.common.installed import installed_points

NATIVE, AS_THE_MODEL = "the native pass", "PyTorch, as the model does"
OWN_LAYERS = "some of the target's own layers"

Kind = Literal["plain", "text", "target", "model", "head", "several"]
"""What a drafter runs: nothing; text it has seen; the target's own passes; a draft model; a trained head; others."""
KINDS: tuple[Kind, ...] = get_args(Kind)

RunsHead = TypeVar("RunsHead")

FOLDERS = "headstart.methods"
"""Entry points of this group name folders of methods like those of ``methods/``, which are read when somebody asks for
what these lack."""


@dataclass(frozen=True)
class Method:
    """One drafter. A method's folder lists its own in ``METHODS``."""

    name: str
    summary: str
    """One line: how it guesses."""
    source: str
    """The paper, or the project it follows."""
    drafter: str
    """Where the class is: ``module:Class``."""
    kind: Kind = "text"
    usual: bool = False
    """Pays often enough, as it comes, to be measured where nobody names drafters."""
    runs_others: bool = False
    """Its guesses are those of other drafters."""
    free: bool = False
    """Needs no second model and costs nothing until a request names it."""
    untaught: str = ""
    """What it guesses with where no model is named, if nobody has taught that to guess."""
    from_tokens: bool = False
    """It needs nothing but a sequence's tokens, so that another engine can run it (``headstart_integrations``)."""
    default_for: Literal["", "model", "module", "engine", "target"] = ""
    """Where nobody is named it guesses with a draft model, with a multi-token module alone, in another engine, with the
    target's own weights."""
    other_names: tuple[str, ...] = ()
    """Names of its kin, whose heads it runs, too."""


@dataclass(frozen=True)
class Trained:
    """What ``headstart train`` makes for a method. A method's folder lists its own in ``TRAINED``."""

    name: str
    maker: str
    """Where the training wing makes it, at its first step: ``module:function``, called with a ``making.Start``."""
    settings: tuple[str, ...] = ()
    """Of ``making.HeadSettings``, those that it uses and not all do."""
    trunk: str = ""
    """The kind of head that it really is, with other ``defaults``; empty: one of its own."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What is set in its trunk unless the user says otherwise."""
    slots: int = 4
    """Future tokens that it guesses unless told otherwise."""
    unroll: int = 1
    """Steps that it is unrolled for unless told otherwise."""
    whole_vocabulary: bool = False
    """It says all of the target's tokens, and learns of all unless told otherwise."""
    in_blocks: bool = False
    """It guesses in blocks, whose guesses the loss dpace weighs."""
    layers_of_target: bool = False
    """Its layers are chosen from the target's; else it has layers of its own, and ``layers`` is their number."""
    begins_from: tuple[str, ...] = ()
    """Further kinds whose heads it may begin from."""
    own_start: bool = False
    """Its maker reads what it begins from."""
    check: str = ""
    """Where the training wing refuses targets that it cannot be made of: ``module:function``, called with the target
    and the settings."""
    optimiser: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class HeadFiles:
    """Trained heads of a method on disk. The folder of a method that has heads describes theirs in ``HEAD_FILES``."""

    module: str
    """What reads and writes them: a module with ``find``, ``read`` and ``write`` as ``heads.formats`` has them."""
    exports: Mapping[str, tuple[str, ...]]
    """Kinds of heads, as ``headstart train`` calls them -> formats of other programs that such a head may be written
    in."""
    names: tuple[str, ...] = ()
    """What files of their tensors may be called beside the usual names."""


@dataclass(frozen=True)
class HeadPasses(Generic[RunsHead]):
    """What runs a method's heads beside passes of the target. A method's folder names its own in ``PASSES``."""

    torch: str
    """By PyTorch: ``module:function``, called with the head, the target's tables and a ``head_kit.Kit``."""
    compiled: str = ""
    """By the native library: likewise, but called with a precision's name in place of the last, and ``isa``; heads that
    are ``unfit`` for it, or all if there is none, are left to PyTorch."""
    unfit: str = ""
    """Why the library cannot run a head: ``module:function``, called with its configuration, a few words or None."""
    by_products: bool = False
    """Heads that are left to PyTorch take compiled products."""
    as_the_target: bool = False
    """Its "auto" is the target's precision, not the fastest."""

    def by_torch(self) -> Callable[..., RunsHead]:
        """What ``torch`` names."""
        made: Callable[..., RunsHead] = _named(self.torch)
        return made

    def by_library(self) -> Callable[..., RunsHead]:
        """What ``compiled`` names."""
        made: Callable[..., RunsHead] = _named(self.compiled)
        return made

    def left_to_torch(self, head: Any) -> str | None:
        """Why the native library does not run a head, in a few words; None: it does."""
        if not self.compiled:
            return "its method has no native pass"
        reason: str | None = _named(self.unfit)(head.config) if self.unfit else None
        return reason


@cache
def method_folders() -> tuple[Any, ...]:
    """The packages of all methods, by their names. Imports none of their drafters."""
    names = sorted(each.name for each in iter_modules([str(Path(__file__).with_name("methods"))]))
    return tuple(import_module(f"{__package__}.methods.{name}") for name in names)


def brought_folders() -> tuple[Any, ...]:
    """Those that other packages bring; one that is no longer whole is passed over, with a warning."""
    return _loaded(installed_points(FOLDERS))


def head_files() -> tuple[HeadFiles, ...]:
    """What reads and writes heads of the methods that come with Headstart, by the names of their folders."""
    return _head_files(method_folders())


def brought_head_files() -> tuple[HeadFiles, ...]:
    """Likewise of those that other packages bring."""
    return _head_files(brought_folders())


def passes_of(drafter: str) -> HeadPasses[Any] | None:
    """What runs the heads of the drafter of this name; None: they are no heads that a kit runs."""
    folders = (*method_folders(), *brought_folders())
    named = (folder for folder in folders if any(method.name == drafter for method in folder.METHODS))
    return getattr(next(named, None), "PASSES", None)


def tensor_files() -> tuple[str, ...]:
    """``HeadFiles.names`` of all methods."""
    return tuple(name for files in (*head_files(), *brought_head_files()) for name in files.names)


@cache
def _loaded(points: tuple[EntryPoint, ...]) -> tuple[Any, ...]:
    found = []
    for point in points:
        try:
            folder: Any = point.load()
            _ = [method.name for method in folder.METHODS]
            found.append(folder)
        except Exception as error:  # whatever such a package can raise
            warnings.warn(f"methods of {point.value} are passed over: {error}; install them again.", stacklevel=4)
    return tuple(found)


def _named(place: str) -> Any:
    """What ``module:name`` is."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _head_files(folders: Iterable[Any]) -> tuple[HeadFiles, ...]:
    return tuple(folder.HEAD_FILES for folder in folders if hasattr(folder, "HEAD_FILES"))
