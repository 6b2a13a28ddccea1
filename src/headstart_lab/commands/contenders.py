"""What a command tells of the drafters that it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.cli.progress import Activity
    from headstart.drafting.base import Drafter
    from headstart.drafting.context import DraftContext
    from headstart_lab.workbench import Contender


def saying_memory(contenders: Sequence[Contender], activity: Activity) -> list[Contender]:
    """The same contenders. When they are built, lines that stay say what the target takes, and what it takes with each
    drafter that has weights or a cache.
    """
    from headstart.common.memory import MemoryUse
    from headstart.drafting.abilities import bytes_of

    said: set[str | None] = set()

    def told(contender: Contender) -> Contender:
        def create(context: DraftContext) -> Drafter:
            drafter = contender.create(context)
            runner, own = context.require_runner(), bytes_of(drafter)
            name = contender.name if own else None
            if name not in said:
                said.add(name)
                activity.say(MemoryUse(runner.backend.nbytes, runner.cache.storage.nbytes, own).sentence(name))
            return drafter

        return replace(contender, create=create)

    return [told(contender) for contender in contenders]
