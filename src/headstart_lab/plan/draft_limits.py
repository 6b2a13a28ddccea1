"""How long and how large a drafter's drafts may be, as a user tells it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace

from headstart.drafting.base import SpeculationParams
from headstart.drafting.options import parse_drafter, pieces
from headstart.drafting.registry import drafter_options
from headstart_lab.workbench import Contender

MOST_TOKENS = 15
MOST_NODES = 31


@dataclass(frozen=True)
class DraftLimits:
    """A drafter with what bounds its drafts: options of its own, and of a request where it has none for that."""

    drafter: str
    """With its options, as ``Contender.parse`` reads it."""
    speculation: SpeculationParams

    @property
    def command(self) -> str:
        """The same as options of ``headstart generate``."""
        words = ["--drafter", self.drafter]
        for option, value in (
            ("--draft-tokens", self.speculation.draft_tokens),
            ("--tree-nodes", self.speculation.tree_nodes),
        ):
            if value is not None:
                words += [option, str(value)]
        return shlex.join(words)


def limits_of(drafter: str, length: int, nodes: int, *, cuts_levels: bool, cuts_nodes: bool) -> DraftLimits:
    """``drafter``, as the user wrote it, with drafts of ``length`` levels and ``nodes`` nodes at most.

    Args:
        cuts_levels, cuts_nodes: the limit leaves something out; one that does not is only said to a drafter that has
            a limit of its own.
    """
    known = _limits_known(drafter)
    own = {"draft_tokens": length, "tree_nodes": nodes}
    return DraftLimits(
        _written(drafter, {name: value for name, value in own.items() if name in known}),
        SpeculationParams(
            draft_tokens=length if cuts_levels and "draft_tokens" not in known else None,
            tree_nodes=nodes if cuts_nodes and "tree_nodes" not in known else None,
        ),
    )


def freely(contender: Contender) -> Contender:
    """The same drafter under the same name, free to draft as much as is worth comparing, where the user set no limit.

    Raises:
        ConfigError: there is no such drafter.
    """
    _, given = parse_drafter(contender.name)
    most = {"draft_tokens": MOST_TOKENS, "tree_nodes": MOST_NODES}
    known = _limits_known(contender.name)
    free = {name: value for name, value in most.items() if name in known and name not in given}
    return replace(contender, create=Contender.parse(_written(contender.name, free), contender.optional).create)


def _limits_known(drafter: str) -> set[str]:
    name, _ = parse_drafter(drafter)
    return {"draft_tokens", "tree_nodes"} & {field.name for field in fields(drafter_options(name))}


def _written(drafter: str, limits: dict[str, int]) -> str:
    """A drafter as the user wrote it, these limits in the place of its own."""
    kept = [part for part in pieces(drafter, ":") if part.partition("=")[0] not in limits]
    return ":".join(kept + [f"{name}={value}" for name, value in limits.items()])
