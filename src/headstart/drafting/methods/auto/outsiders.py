"""Drafters of other packages among those that the planner asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from headstart.common.memory import is_lack_of_memory
from headstart.drafting.planning.merged import Guesses
from headstart.drafting.registry import blamed, is_foreign
from headstart.passes.draft_tree import DraftTree

_log = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Outsiders:
    """What drafters answer, by their places. One of another package that fails is asked no more; the others guess on.

    Attributes:
        failed: places of those that did.
    """

    def __init__(self, names: Sequence[str], vocab_size: int) -> None:
        self._names = {place: name for place, name in enumerate(names) if is_foreign(name)}
        self._vocab_size = vocab_size
        self.failed: set[int] = set()

    def answer(
        self, place: int, ask: Callable[Arguments, Result], *arguments: Arguments.args, **more: Arguments.kwargs
    ) -> Result | None:
        """What ``ask`` returns; None, too, where the drafter has failed."""
        if place in self.failed:
            return None
        try:
            return ask(*arguments, **more)
        except Exception as error:
            if place not in self._names or is_lack_of_memory(error):
                raise
            self.failed.add(place)
            _log.warning("auto guesses without it: %s", blamed(self._names[place], error))
        return None

    def guesses(self, place: int, propose: Callable[[], Sequence[DraftTree]], count: int) -> list[Guesses]:
        """What ``propose`` has a drafter guess for ``count`` sequences; none, where it has failed."""

        def proposed() -> list[Guesses]:
            guesses = [Guesses.of(tree) for _, tree in zip(range(count), propose(), strict=True)]
            tokens = [token for each in guesses for token in each.tokens] if place in self._names else ()
            if not all([0 <= token < self._vocab_size for token in tokens]):
                raise ValueError("a guess is outside the vocabulary")
            return guesses

        return self.answer(place, proposed) or []
