"""How many steps of a training fit into a budget of time."""

from __future__ import annotations

TIMED_STEPS = 5
"""Steps that are timed before anything is said."""


class StepTimes:
    """The time of the latest steps. On text that has not been read yet a step also computes the target's states."""

    def __init__(self) -> None:
        self.measuring = 0.0
        """Seconds that measuring the head takes of each step, on average."""
        self._begin()

    @property
    def known(self) -> bool:
        """Whether enough steps were timed."""
        return self._steps >= TIMED_STEPS

    @property
    def guessed(self) -> bool:
        """Whether any step was timed."""
        return self._steps > 0

    def add(self, seconds: float, computing: float) -> None:
        """A step took ``seconds``, ``computing`` of them for the target's states."""
        self._steps += 1
        self._seconds += seconds - computing
        self._computing += computing

    def fitting(self, seconds: float, unread: int | None) -> int:
        """Steps that fit into ``seconds`` as they went since this was last asked; ``unread``: see ``steps_within``."""
        step, computing = self._seconds / self._steps + self.measuring, self._computing / self._steps
        self._begin()
        return steps_within(max(seconds, 0.0), step, computing, unread)

    def _begin(self) -> None:
        self._steps, self._seconds, self._computing = 0, 0.0, 0.0


def steps_within(seconds: float, step: float, computing: float, unread: int | None) -> int:
    """Steps that fit into ``seconds``.

    Args:
        step: seconds of a step on text whose target states are kept.
        computing: further seconds where they are not.
        unread: coming steps on text that has not been read yet; None: states are computed every time.
    """
    fitting = seconds / (step + computing)
    if unread is not None and fitting > unread:
        fitting = (seconds - unread * computing) / step
    return int(fitting)
