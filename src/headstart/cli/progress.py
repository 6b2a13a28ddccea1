"""What is going on, on a terminal's stderr, and gone when it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn

from headstart import phases

if TYPE_CHECKING:
    from headstart.analysis.workbench import Contender
    from headstart.drafting.base import Drafter
    from headstart.drafting.context import DraftContext
    from headstart.phases import Phase


class _Bar(BarColumn):
    """Only where it is known how long it is."""

    def render(self, task: Task) -> Any:
        return "" if task.total is None else super().render(task)


class Activity:
    """A line with a spinner, and a bar where there is something to count. Silent where stderr is no terminal.

    Args:
        shown: False: never show anything.
    """

    def __init__(self, shown: bool = True) -> None:
        self._quiet = not shown
        self._ears = ExitStack()
        self._shown = shown and sys.stderr.isatty()
        # Output makes room for itself (``aside``), so that nothing has to be redirected.
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _Bar(bar_width=30),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=None, note="")
        self._tokens, self._began = 0, 0.0

    def __enter__(self) -> Activity:
        self._ears.enter_context(phases.heard(self._rare_phase))
        return self

    def __exit__(self, *_: object) -> None:
        self._ears.close()
        self.stop()

    def show(self, description: str, total: int | None = None) -> None:
        """Begin something; ``total``: how many steps it has, where that is known."""
        if self._shown:
            self._tokens, self._began = 0, time.perf_counter()
            self._progress.reset(self._task, description=description, total=total, note="")
            self._progress.start()

    def phase(self, phase: Phase) -> None:
        """A part of a start, for ``phases.heard``: it is shown while it lasts."""
        if self._shown:
            self.show(phase.sentence)
        else:
            self._rare_phase(phase)

    def _rare_phase(self, phase: Phase) -> None:
        """What takes long once gets a line that stays, even where stderr is no terminal; other parts none."""
        if phase.rare and not self._quiet:
            with self.aside():
                print(f"{phase.sentence} ...", file=sys.stderr, flush=True)

    def advance(self, steps: int, tokens: int) -> None:
        """So many steps and tokens more."""
        if self._shown:
            self._tokens += tokens
            seconds = time.perf_counter() - self._began
            self._progress.update(
                self._task, advance=steps, note=f"{self._tokens} tokens, {self._tokens / seconds:.0f} tokens/s"
            )

    def advance_saying(self, steps: int, note: str) -> None:
        """So many steps more, and how it stands."""
        if self._shown:
            self._progress.update(self._task, advance=steps, note=note)

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._shown:
            with self.aside():
                print(line, file=sys.stderr)

    def stop(self) -> None:
        if self._shown:
            self._progress.stop()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Make room for output."""
        running = self._shown and self._progress.live.is_started
        if running:
            self._progress.stop()
        yield
        if running:
            self._progress.start()


def saying_memory(contenders: Sequence[Contender], activity: Activity) -> list[Contender]:
    """The same contenders. When they are built, lines that stay say what the target takes, and what it takes with each
    drafter that has weights or a cache.
    """
    from headstart.drafting.base import bytes_of
    from headstart.memory import MemoryUse

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
