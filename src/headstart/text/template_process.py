"""Chat templates are rendered in processes of their own: one step of a hostile one can take minutes, and nothing ends
a step in ours. Whoever loads a model shares them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.text.bounded_process import BoundedProcess, EndedError

_WORKER = Path(__file__).with_name("template_worker.py")
_MOST = 4
"""Processes: a conversation that takes long to render holds up others only where there are as many of them."""
_REMEMBERED = 64


class TemplateFailure(Exception):
    """What is wrong with a template, or with what it was given."""


class _Renderer(BoundedProcess):
    """A process, and the templates that it has compiled."""

    def __init__(self, seconds: float) -> None:
        super().__init__(_WORKER, (seconds,))
        self.compiled = set[str]()


class TemplateProcesses:
    """Renders templates; each process starts when the others are busy.

    Args:
        seconds: processor time that a template may take to be compiled, and as much for each rendering.
    """

    def __init__(self, seconds: float = 3.0) -> None:
        self._seconds = seconds
        self._begin()

    def render(self, source: str, variables: Mapping[str, Any]) -> str:
        """A template's text. ``variables``: of JSON types.

        Raises:
            TemplateFailure: the template refuses them, is none, or takes more time or memory than it may.
        """
        if self._owner != os.getpid():  # a fork: its parent's processes and locks are not ours
            self._begin()
        if (known := self._faults.get(source)) is not None:
            raise TemplateFailure(known)
        with self._free:
            with self._choice:
                renderer = self._taken()
            try:
                return self._rendered(renderer, source, variables)
            except OSError as error:
                raise TemplateFailure(f"no process can be started for it: {error.strerror}") from error
            finally:
                self._idle.append(renderer)

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._free = threading.BoundedSemaphore(_MOST)
        self._choice = threading.Lock()
        self._idle = [_Renderer(self._seconds) for _ in range(_MOST)]
        self._faults = dict[str, str]()
        """Template -> what is wrong with it, whatever it is given."""

    def _taken(self) -> _Renderer:
        """A process that runs already, where one is idle."""
        running = (place for place, each in enumerate(self._idle) if each.running)
        return self._idle.pop(next(running, 0))

    def _rendered(self, renderer: _Renderer, source: str, variables: Mapping[str, Any]) -> str:
        if not renderer.running:
            renderer.compiled.clear()
        if source not in renderer.compiled:
            wrong = self._compiled(renderer, source)
            if wrong:
                while len(self._faults) >= _REMEMBERED:
                    self._faults.pop(next(iter(self._faults)), None)
                self._faults[source] = wrong
                raise TemplateFailure(wrong)
            renderer.compiled.add(source)
        try:
            wrong, text = renderer.ask(source, variables)
        except EndedError:
            raise TemplateFailure("it takes more time or memory than it may") from None
        if wrong:
            raise TemplateFailure(wrong)
        return str(text)

    def _compiled(self, renderer: _Renderer, source: str) -> str:
        """What is wrong with a template, empty if nothing is."""
        try:
            wrong, _ = renderer.ask(source, None)
        except EndedError:
            return "it takes more time or memory to be compiled than it may"
        return str(wrong)


PROCESSES = TemplateProcesses()
