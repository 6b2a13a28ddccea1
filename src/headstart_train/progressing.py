"""Who is told how a training goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headstart_train.trainer import StepReport


@dataclass(frozen=True)
class Progressing:
    """Who is told what is going on."""

    begin: Callable[[str, int | None], None] = lambda description, total: None
    """A phase begins: what it does, and of how many steps, if that is known."""
    wrote: Callable[[int, int], None] = lambda documents, tokens: None
    says: Callable[[str], None] = lambda sentence: None
    """What is expected, in a sentence."""
    left: Callable[[float], None] = lambda seconds: None
    """About so many seconds are left, of everything."""
    trained: Callable[[StepReport], None] = lambda report: None
