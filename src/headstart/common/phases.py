"""What a slow start is doing, for whoever shows it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Phase:
    """A part of a start."""

    sentence: str
    """What is done, without a full stop."""
    rare: bool = False
    """It takes long, and is done once on this machine: worth a line that stays."""


Listener = Callable[[Phase], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)
_PHASES: ContextVar[tuple[Phase, ...]] = ContextVar("phases", default=())


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """In here, ``listener`` is told each phase as it begins, and the one that goes on when an inner one ends."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


@contextmanager
def phase(sentence: str, rare: bool = False) -> Iterator[None]:
    """What is done in here."""
    outer = _PHASES.get()
    token = _PHASES.set((*outer, Phase(sentence, rare)))
    _tell()
    try:
        yield
    finally:
        _PHASES.reset(token)
        if outer:
            _tell()


def _tell() -> None:
    listener = _LISTENER.get()
    now = _PHASES.get()[-1]
    if listener is not None:
        listener(now)
    elif now.rare:
        logger.warning(
            "%s ...", now.sentence
        )  # shown unless logging is set up otherwise: a library's start, too, takes long
