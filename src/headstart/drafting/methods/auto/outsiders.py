"""Drafters of other packages among those that the planner asks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from headstart.drafting.base import Drafter, TargetSignals
from headstart.drafting.context import DraftContext
from headstart.drafting.planning.merged import Guesses
from headstart.drafting.registry import blamed, check_needs, is_foreign
from headstart.passes.draft_tree import DraftBudget, DraftTree

_log = logging.getLogger(__name__)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_NOTHING = TargetSignals()


class Outsiders:
    """What drafters answer, by their places. One of another package that fails is asked no more; the others guess on.

    Attributes:
        failed: places of those that did.
    """

    def __init__(self, names: Sequence[str], context: DraftContext) -> None:
        self._names = {place: name for place, name in enumerate(names) if is_foreign(name)}
        self._context = context
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
            if place not in self._names:
                raise
            self.failed.add(place)
            _log.warning("auto guesses without it: %s", blamed(self._names[place], error))
        return None

    def needs(self, place: int, drafter: Drafter) -> TargetSignals:
        """What a drafter needs by now; nothing, where it has failed."""
        if place not in self._names:
            return drafter.needs
        return self.answer(place, lambda: check_needs(self._names[place], drafter.needs, self._context)) or _NOTHING

    def guesses(
        self, place: int, propose: Callable[[], Sequence[DraftTree]], budgets: Sequence[DraftBudget]
    ) -> list[Guesses]:
        """What ``propose`` has a drafter guess for a sequence with each of ``budgets``; none, where it has failed."""

        def proposed() -> list[Guesses]:
            trees = propose()
            for tree, budget in zip(trees, budgets, strict=True) if place in self._names else ():
                if len(tree) > budget.nodes:  # before anything looks at the nodes
                    raise ValueError(f"it gave a tree of {len(tree)} nodes; {budget.nodes} were allowed")
                if not ((tree.tokens >= 0) & (tree.tokens < self._context.vocab_size)).all():
                    raise ValueError("a guess is outside the vocabulary")
            return [Guesses.of(tree) for tree in trees]

        return self.answer(place, proposed) or []
