"""Ctrl-C in the middle of a measurement: what was measured until then is reported, and said to be a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


class Interruption:
    """How much of a measurement there is, and whether Ctrl-C has ended it.

    Args:
        units: what is counted, in the plural.
        expected: how many there are to measure.
        measured: how many of them have been, to their end.
    """

    def __init__(self, units: str, expected: int, measured: Callable[[], int]) -> None:
        self.happened = False
        self._units = units
        self._expected = expected
        self._measured = measured

    def expect(self, expected: int) -> None:
        """So many there are to measure, now that it is known."""
        self._expected = expected

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Measure in here: Ctrl-C goes on after it, where there is something to report.

        Raises:
            KeyboardInterrupt: nothing was measured to its end; said in one sentence.
        """
        try:
            yield
        except KeyboardInterrupt:
            if not self._measured():
                typer.echo(
                    f"Interrupted before any of {self._expected} {self._units} was done; nothing is reported.", err=True
                )
                raise
            self.happened = True

    def record(self) -> dict[str, Any]:
        """For a report."""
        name = self._units.replace(" ", "_")
        return {
            "interrupted": self.happened,
            f"{name}_planned": self._expected,
            f"{name}_measured": self._measured(),
        }

    @property
    def sentence(self) -> str:
        """What a report of a part begins with; empty where nothing was interrupted."""
        if not self.happened:
            return ""
        return f"Interrupted (Ctrl-C): this rests on {self._measured()} of {self._expected} {self._units}."

    def end(self) -> None:
        """After the report: say so, and end as interrupted.

        Raises:
            KeyboardInterrupt: it was.
        """
        if self.happened:
            typer.echo(self.sentence, err=True)
            raise KeyboardInterrupt
