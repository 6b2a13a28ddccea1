"""What is going on: a line on a terminal's stderr that is gone when it is over, or now and then a line in a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from headstart.common import phases

if TYPE_CHECKING:
    from headstart.common.phases import Phase

LINE_SECONDS = 10.0
"""From one line in a file to the next."""


class _Bar(BarColumn):
    """Only where it is known how long it is."""

    def render(self, task: Task) -> Any:
        return "" if task.total is None else super().render(task)


class Activity:
    """A line with a spinner, and a bar where there is something to count, with the time that is left.

    Args:
        shown: False: never show anything.
        aloud: where stderr is no terminal, a plain line every ten seconds; else silent there.
    """

    def __init__(self, shown: bool = True, aloud: bool = False) -> None:
        self._quiet = not shown
        self._ears = ExitStack()
        self._shown = shown and sys.stderr.isatty()
        self._aloud = shown and aloud and not self._shown
        # Output makes room for itself (``aside``), so that nothing has to be redirected.
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            _Bar(bar_width=30),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            _Left(self),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=None, note="")
        self._tokens, self._began = 0, 0.0
        self._description, self._note = "", ""
        self._done = 0
        self._total: int | None = None
        self._deadline: float | None = None
        self._silent = Event()
        self._speaker = Thread(target=self._speak, name="headstart-progress", daemon=True) if self._aloud else None

    def __enter__(self) -> Activity:
        if self._speaker is not None:
            self._speaker.start()
        self._ears.enter_context(phases.heard(self._rare_phase))
        return self

    def __exit__(self, *_: object) -> None:
        self._ears.close()
        self.stop()
        if self._speaker is not None:
            self._silent.set()
            self._speaker.join()

    def show(self, description: str, total: int | None = None) -> None:
        """Begin something; ``total``: how many steps it has, where that is known."""
        self._tokens, self._began = 0, time.perf_counter()
        self._description, self._note, self._done, self._total = description, "", 0, total
        if self._shown:
            self._progress.reset(self._task, description=description, total=total, note="")
            self._progress.start()

    def end_within(self, seconds: float | None) -> None:
        """From now on so much time is left, whatever is shown; None: that follows from the steps that are done."""
        self._deadline = None if seconds is None else time.perf_counter() + seconds

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
        self._tokens += tokens
        seconds = time.perf_counter() - self._began
        self.advance_saying(steps, f"{self._tokens} tokens, {self._tokens / max(seconds, 1e-9):.0f} tokens/s")

    def advance_saying(self, steps: int, note: str) -> None:
        """So many steps more, and how it stands."""
        self._done, self._note = self._done + steps, note
        if self._shown:
            self._progress.update(self._task, advance=steps, note=note)

    @property
    def line(self) -> str:
        """How it stands."""
        count = "" if self._total is None else f" {self._done} of {self._total}"
        # What counts nothing goes on all the same.
        seconds = time.perf_counter() - self._began
        going = f"{spoken(seconds)} so far" if self._description and not (count or self._note) else ""
        return ", ".join(part for part in (f"{self._description}{count}", self._note, going, self.left) if part)

    def _speak(self) -> None:
        while not self._silent.wait(LINE_SECONDS):
            if line := self.line:  # else nothing was shown yet
                print(line, file=sys.stderr, flush=True)

    @property
    def left(self) -> str:
        """About how much time is left; empty: unknown."""
        now = time.perf_counter()
        if self._deadline is not None:
            seconds = max(self._deadline - now, 0.0)
        elif self._total and self._done:
            seconds = (now - self._began) * max(self._total - self._done, 0) / self._done
        else:
            return ""
        return f"about {spoken(seconds)} left"

    def say(self, line: str) -> None:
        """A line that stays."""
        if self._shown:
            with self.aside():
                print(line, file=sys.stderr)

    def announce(self, line: str) -> None:
        """A line that stays, in a file too."""
        if self._aloud:
            print(line, file=sys.stderr, flush=True)
        self.say(line)

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


def import_engine(shown: bool = True) -> None:
    """Import what computes models, which takes seconds, and say so meanwhile."""
    with Activity(shown) as activity:
        activity.show("Starting")
        import headstart.entrypoints.llm  # noqa: F401


class _Left(ProgressColumn):
    """How much time is left."""

    def __init__(self, activity: Activity) -> None:
        super().__init__()
        self._activity = activity

    def render(self, task: Task) -> Text:
        return Text(self._activity.left)


def spoken(seconds: float) -> str:
    """A span of time, as precise as an estimate is: 40 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{5 * round(seconds / 5) if seconds >= 10 else round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
