"""Which commands there are, without importing one of them: each is found by its name, Headstart's own first, then
those that other packages add with entry points of the group ``headstart.commands``.

An entry point names a ``Listed``, in a module that is quick to import: the page of all commands reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from headstart.errors import ConfigError

GROUP = "headstart.commands"
USE, MEASURE, TRAIN, MORE = "Use a model", "Measure", "Make drafters", "More"
PANELS = (USE, MEASURE, TRAIN, MORE)
"""In the order in which they are shown; those that others add come last."""

ENGINE = ("--model", "--drafter", "--draft-model")


@dataclass(frozen=True)
class Listed:
    """A command as it is listed."""

    target: str
    """``module:function``, with Typer's annotations."""
    help: str
    """One line of the page of all commands."""
    panel: str = MORE
    first: tuple[str, ...] = ()
    """Options that its short page explains; empty: all."""
    commands: Mapping[str, Listed] = field(default_factory=dict)
    """Those below it, by name."""
    arguments: str = ""
    """``module:class`` that declares its options beside the engine's, where other programs call them otherwise."""
    after: str = ""
    """The command that it is listed behind; empty: the last one of its panel."""

    def load(self, name: str) -> Any:
        """The function.

        Raises:
            ConfigError: its module cannot be imported.
        """
        module, _, attribute = self.target.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise _unloadable(name, self.target, error) from error


@dataclass(frozen=True)
class _Broken(Listed):
    """A command of another package whose entry point cannot be followed."""

    error: Exception | None = None

    def load(self, name: str) -> Any:
        raise _unloadable(name, self.target, self.error) from self.error


GENERATE = Listed(
    "headstart.cli.generate:generate",
    "Continue a prompt, or work through a file of them.",
    USE,
    (*ENGINE[:2], "--chat", "--prompts", "--temperature", "--max-tokens", "--compare"),
)
DRAFTERS = Listed("headstart.cli.drafters:drafters", "List the drafters, or show the options of one.", USE)
NATIVE = Listed("headstart.cli.native:native", "Compile the native pass ahead of its first use.")

OWN: Mapping[str, Listed] = {"generate": GENERATE, "drafters": DRAFTERS, "native": NATIVE}
"""Those that are there whatever is installed beside: no package's metadata are read for them."""


def find(name: str) -> Listed | None:
    """The command of a name; None: there is none."""
    return OWN.get(name) or added().get(name)


def every() -> dict[str, Listed]:
    """All commands, panel by panel."""
    found = {**OWN, **added()}
    panels = list(dict.fromkeys((*PANELS, *(each.panel for each in found.values()))))
    names = sorted(found, key=lambda name: panels.index(found[name].panel))
    for name in found:
        if (before := found[name].after) in found:
            names.remove(name)
            names.insert(names.index(before) + 1, name)
    return {name: found[name] for name in names}


@cache
def added() -> Mapping[str, Listed]:
    """Those of other packages; a name that is taken is left to whoever has it."""
    from importlib.metadata import entry_points

    found: dict[str, Listed] = {}
    for point in entry_points(group=GROUP):
        if point.name in OWN or point.name in found:
            continue
        try:
            listed = point.load()
            if not isinstance(listed, Listed):
                raise TypeError("it is no Listed of headstart.cli.commands")
        except Exception as error:  # whatever a package that is no longer whole can raise
            listed = _Broken(point.value, "cannot be loaded: its package is damaged or not whole.", error=error)
        found[point.name] = listed
    return found


def _unloadable(name: str, target: str, error: Exception | None) -> ConfigError:
    return ConfigError(f"command {name!r} cannot be loaded from {target}: {error}; install its package again.")
