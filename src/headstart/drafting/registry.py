"""Drafters by name: the ones that come with Headstart, and those that other packages add.

A package adds a drafter by an entry point in the group ``headstart.drafters``: the entry point's name is the
drafter's, its value the class (``docs/add_a_drafter.md``). A drafter class is called with a ``DraftContext`` and
its options, and names their frozen dataclass in ``Options`` (left out: it has none). Its module is imported when
it is first built, so listing costs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.common.installed import installed_points
from headstart.drafting import DEFAULT_DRAFTER
from headstart.drafting.context import DraftContext
from headstart.drafting.method import KINDS, Method, Trained, brought_folders, method_folders
from headstart.drafting.options import GuessesForEach, HasOptions, NoOptions, check_files, parse_options
from headstart.errors import ConfigError, DrafterError, HeadstartError, meant

if TYPE_CHECKING:
    from headstart.drafting.base import Drafter, TargetSignals

ENTRY_POINT_GROUP = "headstart.drafters"
_PARTS = ("needs", "begin", "propose", "observe", "end")
"""Of a drafter."""


@cache
def _own() -> dict[str, Method]:
    """The methods that come with Headstart, by kind, then by their folder. Imports none of their drafters."""
    rows = [method for folder in method_folders() for method in folder.METHODS]
    return {method.name: method for method in sorted(rows, key=lambda method: KINDS.index(method.kind))}


def _brought() -> dict[str, Method]:
    """Those that the folders of other packages bring."""
    return {method.name: method for folder in brought_folders() for method in folder.METHODS}


def _listed() -> dict[str, Method]:
    """The rows of all folders; a name that is taken stays whose it is."""
    own = _own()
    return {**own, **{name: method for name, method in _brought().items() if name not in own}}


def _row(name: str) -> Method | None:
    return _own().get(name) or _brought().get(name)


def trained_kinds() -> dict[str, Trained]:
    """What can be trained, by the name that ``headstart train`` has for it. Imports nothing of the training wing."""
    folders = (*method_folders(), *brought_folders())
    rows = [kind for folder in folders for kind in getattr(folder, "TRAINED", ())]
    return {kind.name: kind for kind in sorted(rows, key=lambda kind: kind.name)}


def default_for(place: str) -> str:
    """The drafter that guesses in ``place`` where nobody is named (``Method.default_for``)."""
    return next(name for name, method in _own().items() if method.default_for == place)


def free_drafters() -> tuple[str, ...]:
    """Names of the drafters that copy from text: they need no second model and cost nothing until they are named."""
    return tuple(name for name, method in _listed().items() if method.free and method.kind == "text")


def _other_names() -> dict[str, str]:
    return {other: name for name, method in _own().items() for other in method.other_names}


def available_drafters() -> dict[str, Method]:
    """Every drafter by name: rows of folders by their kind, then single drafters of packages. Imports none of them."""
    rows = sorted(_listed().values(), key=lambda method: KINDS.index(method.kind))
    return {method.name: method for method in (*rows, *map(_info, _entry_points().values()))}


def hosted_drafters() -> list[str]:
    """Names of the drafters that another engine can run; one of another package is taken to be able to."""
    own = [name for name, method in _listed().items() if method.from_tokens]
    return own + list(_entry_points())


def chosen_drafter(drafter: str | type[Any] | None, draft_model: str | Path | None) -> str | type[Any]:
    """Who guesses where nobody is named (None): what runs ``draft_model``, if that is a whole model or a multi-token
    module alone, else the default, which runs a head.

    Raises:
        CheckpointError: a file of the draft model is damaged.
    """
    # Imported here: listing drafters takes no PyTorch.
    from headstart.drafting.head_files.loading import is_whole_model

    if drafter is None and draft_model is not None and names_modules(str(draft_model)):
        return default_for("module")
    if drafter is None and draft_model is not None and is_whole_model(str(draft_model)):
        return default_for("model")
    return DEFAULT_DRAFTER if drafter is None else drafter


def names_modules(draft_model: str) -> bool:
    """Whether a draft model is multi-token modules alone: as ``headstart train`` or llama.cpp's converter writes them.

    Raises:
        CheckpointError: its file is damaged.
    """
    from headstart.drafting.head_files.loading import is_modules_alone, trained_as

    return is_modules_alone(draft_model) or trained_as(draft_model) == default_for("module")


def drafter_name(drafter: str | type[Any]) -> str:
    """What a drafter is called here, given by one of its names or its class."""
    return _other_names().get(drafter, drafter) if isinstance(drafter, str) else drafter.__name__


def found_drafter(name: str) -> Method | None:
    """A drafter as listed, by any of its names; None: there is none. Folders of other packages are read last."""
    own = drafter_name(name)
    if (row := _row(own)) is not None:
        return row
    point = _entry_points().get(own)
    return None if point is None else _info(point)


def is_drafter(name: str) -> bool:
    """Whether some drafter has this name."""
    return found_drafter(name) is not None


def drafter_info(name: str) -> Method:
    """A drafter as listed, by any of its names.

    Raises:
        ConfigError: no drafter has this name.
    """
    if (info := found_drafter(name)) is None:
        known = (*available_drafters(), *_other_names())
        raise ConfigError(f"there is no drafter {name!r:.60}; {meant(name, known)}")
    return info


def drafter_options(drafter: str | type[Any]) -> type[Any]:
    """The frozen dataclass of the options of a drafter, given by its name or its class.

    Raises:
        ConfigError: no drafter has this name, its package cannot be imported, or its options are no dataclass.
    """
    found = _drafter_class(drafter)
    options = found.Options if isinstance(found, HasOptions) else NoOptions
    if not is_dataclass(options):
        raise ConfigError(f"Options of drafter {drafter_name(drafter)!r} is no dataclass; see docs/add_a_drafter.md.")
    return options


def checked_options(
    drafter: str | type[Any],
    draft_model: str | Path | None = None,
    draft_tokens: int | None = None,
    more: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """The drafter's options, with the common ones under the names that it knows.

    Whatever can be refused without the target is refused here, before anybody reads it.

    Raises:
        ConfigError: there is no such drafter, ``draft_model`` was given to one that runs no model or left out for one
            that is nothing without it, or it refuses an option.
        CheckpointError: the draft model or head is missing or damaged, as far as it shows without its weights.
    """
    options = dict(more or {})
    name = drafter_name(drafter)
    known = {field.name for field in fields(drafter_options(drafter))}
    if draft_model is not None:
        if "model" not in known:
            raise ConfigError(f"draft_model is {str(draft_model)!r}, but drafter {name!r} runs no model; leave it out.")
        options["model"] = str(draft_model)
    if draft_tokens is not None and "draft_tokens" in known:
        options["draft_tokens"] = draft_tokens
    check_files(parse_options(drafter_options(drafter), name, options))
    return options


def guesses_for_each(drafter: str | type[Any], options: Mapping[str, object]) -> int:
    """Guesses that a drafter wants for every sequence, however many decode together; 0: it makes do with its share.

    Raises:
        ConfigError: as ``create_drafter``, as far as options tell.
    """
    parsed = parse_options(drafter_options(drafter), drafter_name(drafter), options)
    return parsed.guesses_each if isinstance(parsed, GuessesForEach) else 0


def create_drafter(drafter: str | type[Any], context: DraftContext, **options: object) -> Drafter:
    """Build a drafter, given by its name or its class.

    Raises:
        ConfigError: no drafter has this name, its package cannot be imported, or it lacks an option, refuses
            its value, or misses something in the context or of a drafter's parts.
        DrafterError: it is another package's, and fails.
    """
    name = drafter_name(drafter)
    parsed = parse_options(drafter_options(drafter), name, options)
    try:
        created: Drafter = _drafter_class(drafter)(context, parsed)
    except Exception as error:
        raised = blamed(name, error)
        raise raised from raised.__cause__
    lacks = [part for part in _PARTS if not hasattr(created, part)]
    if lacks:
        raise ConfigError(f"drafter {name!r} has no {' and no '.join(lacks)}; see docs/add_a_drafter.md.")
    if is_foreign(name):
        check_needs(name, created.needs, context)
    return created


def check_needs(name: str, needs: object, context: DraftContext) -> TargetSignals:
    """Refuse what no target shows.

    Raises:
        ConfigError: naming it.
    """
    from headstart.drafting.base import TargetSignals
    from headstart.passes.batch import FINAL_TAP

    if not isinstance(needs, TargetSignals):
        raise ConfigError(f"needs of drafter {name!r} is {needs!r:.40}, no TargetSignals; see docs/add_a_drafter.md.")
    layers = None if context.runner is None else context.runner.backend.config.num_layers
    beyond = [tap for tap in needs.taps if layers is not None and not FINAL_TAP <= tap <= layers]
    if beyond:
        raise ConfigError(
            f"drafter {name!r} asks for the input of layer {beyond[0]}, and this target has {layers}; use another one."
        )
    return needs


def is_foreign(name: str) -> bool:
    """Whether a drafter is a single one of another package."""
    return _row(name) is None and name in _entry_points()


def blamed(name: str, error: Exception) -> Exception:
    """The error of a drafter as it is raised: of one of another package as a ``DrafterError``, which says so."""
    if not is_foreign(name) or isinstance(error, HeadstartError | OSError):
        return error
    point = _entry_points()[name]
    whose = _info(point).source or point.value
    what = ": ".join([type(error).__name__, *filter(None, [" ".join(str(error).split()).rstrip(".")])])
    failed = DrafterError(f"drafter {name!r} of {whose} failed with {what}. Tell its authors, or use another drafter.")
    failed.__cause__ = error
    return failed


def _drafter_class(name: str | type[Any]) -> Any:
    if not isinstance(name, str):
        return name
    built_in = _row(drafter_name(name))
    if built_in is not None:
        module, _, attribute = built_in.drafter.partition(":")
        return getattr(import_module(module), attribute)
    point = _entry_points().get(name)
    if point is None:
        raise ConfigError(_unknown(name))
    try:
        return point.load()
    except Exception as error:  # whatever a package can raise while it is imported
        raise ConfigError(
            f"drafter {name!r} cannot be loaded from {point.value}: {' '.join(str(error).split())}."
        ) from error


def _unknown(name: str) -> str:
    """What is said of a name that no drafter has."""
    # Imported here: it takes PyTorch.
    from headstart.drafting.heads.formats import UNBUILT

    lacking = UNBUILT.get(name.lower().replace("-", ""))
    if lacking is not None:
        return f"drafter {name!r:.60} would run heads of {lacking}, which is not built; use another drafter."
    return f"there is no drafter {name!r:.60}; {meant(name, [*available_drafters(), *_other_names()])}"


def _entry_points() -> dict[str, EntryPoint]:
    points: dict[str, EntryPoint] = {}
    for point in installed_points(ENTRY_POINT_GROUP):
        if _row(drafter_name(point.name)) is not None or point.name in points:
            warnings.warn(f"drafter {point.name!r} of {point.value} is ignored: the name is taken.", stacklevel=3)
        else:
            points[point.name] = point
    return points


def _info(point: EntryPoint) -> Method:
    if point.dist is None:
        return Method(point.name, "", "", point.value)
    summary = point.dist.metadata["Summary"] or ""
    return Method(point.name, summary, f"package {point.dist.name} {point.dist.version}", point.value)
