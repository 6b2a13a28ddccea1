"""What speculation may lose, whatever the estimates say, and what plain decoding would have taken: docs/planner.md,
"When to stop asking".
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headstart.drafting.base import SequenceView
from headstart.drafting.inner_sequence import adapter_of
from headstart.drafting.planning import constants as c
from headstart.drafting.planning.pass_costs import median

_LEAST_SECONDS = 1e-9
"""No round takes less."""
_SEVERAL = "several"
Size = tuple[int, int, int, str]


class Load(NamedTuple):
    """What the time of a plain round, and what guesses may lose, depend on."""

    sequences: int
    context: int
    """Class of the mean length of their contexts."""
    warmth: int = 0
    """Class of their mean temperature, which changes how often guesses hold; 0: greedy."""
    adapter: str = ""
    """The digest of the one that they all have, which changes it, too."""

    @classmethod
    def of(cls, views: Sequence[SequenceView]) -> Load:
        """Of sequences that decode together."""
        count = max(len(views), 1)
        length = sum([len(view.tokens) for view in views]) / count
        temperature = sum([view.params.temperature for view in views]) / count
        digests = {each.digest if (each := adapter_of(view)) else "" for view in views}
        adapter = digests.pop() if len(digests) == 1 else _SEVERAL
        context = int(c.CONTEXT_CLASSES * math.log2(max(length / c.CONTEXT_LEAST, 1.0)))
        return cls(len(views), context, math.ceil(min(temperature, c.WARMEST) / c.WARMTH_STEP), adapter)

    @property
    def size(self) -> Size:
        """Loads of about this many sequences, of contexts within a factor of four, about as warm and of one adapter,
        share their allowances."""
        return self.sequences.bit_length(), self.context // c.CONTEXTS_TOGETHER, self.warmth, self.adapter


class Allowance:
    """Plain rounds' worth of time that may still be lost."""

    __slots__ = ("rounds",)

    def __init__(self, start: float = c.START) -> None:
        self.rounds = start

    @property
    def lasts(self) -> bool:
        """Whether any is left."""
        return self.rounds > 0.0

    def settle(self, plain: float, taken: float) -> None:
        """What took as long as ``taken`` plain rounds would have taken ``plain`` of them."""
        self.rounds = min(self.rounds + (1.0 + c.SHARE) * plain - taken, c.MOST)


class Allowances(dict[Size, Allowance]):
    """By ``Load.size``. A round of several sequences judges as many times more guesses, so fewer rounds tell."""

    def __missing__(self, size: Size) -> Allowance:
        allowance = self[size] = Allowance(max(c.START / 2 ** (size[0] - 1), c.LEAST_START))
        return allowance


class PlainRounds:
    """Seconds of plain rounds by load: what they take on average, by the median of the last few and by how much more
    than their median such rounds took on the whole. Of numbers of sequences in between what lies between."""

    def __init__(self) -> None:
        self._timings: dict[tuple[int, int], dict[int, deque[float]]] = defaultdict(dict)
        """[context, warmth][sequences]"""
        self._since: dict[Load, int] = defaultdict(int)
        """Rounds with guesses since one was timed,"""
        self._speed: dict[Load, float] = defaultdict(lambda: 2.0)
        """and how many times as fast they were of late."""
        self._others: dict[Load, deque[float]] = defaultdict(lambda: deque(maxlen=c.PLAIN_TIMINGS))
        """Seconds of the last of them but for the drafts: none of them takes less than a plain one."""
        self._timed = c.DISTURBED_WEIGHT
        self._over_median = 1.0
        """Mean of timings over their medians."""

    def add(self, load: Load, seconds: float) -> None:
        """A plain round was timed."""
        recent = self._timings[load.context, load.warmth].setdefault(load.sequences, deque(maxlen=c.PLAIN_TIMINGS))
        recent.append(seconds)
        self._since[load] = 0
        self._others.pop(load, None)
        if len(recent) >= c.PLAIN_LEAST:
            self._timed = min(self._timed + 1.0, c.DISTURBED_MEMORY)
            self._over_median += (min(seconds / median(recent), c.DISTURBED_MOST) - self._over_median) / self._timed

    def speculated(self, load: Load, said: float, taken: float, without_drafts: float) -> None:
        """A round was none: it said as much as ``said`` plain ones, and took as long as ``taken``; in seconds, but for
        the drafts, ``without_drafts``."""
        self._others[load].append(without_drafts)
        self._since[load] += 1
        self._speed[load] += (said - taken * self._speed[load]) / c.PACE_MEMORY

    def due(self, load: Load) -> bool:
        """Whether a plain round is to be timed: none was, or not lately. The less guesses save, the less it takes."""
        if self.seconds(load) is None:
            return True
        lost = 1.0 - 1.0 / max(self._speed[load], 1.0)
        return self._since[load] >= max(lost / c.PLAIN_SHARE, c.PLAIN_OFTEN)

    def seconds(self, load: Load) -> float | None:
        """Of a plain round; None: not known. Until one was timed those over somewhat shorter contexts count, which take
        less: what guesses save is then held for less than it is. Where the machine has become faster since, rounds with
        guesses show it."""
        for context in (load.context, load.context - 1):
            known = self._timings.get((context, load.warmth), {})
            own = known.get(load.sequences, ())
            seconds = median(own) if len(own) >= c.PLAIN_LEAST else _between(known, load.sequences)
            if seconds is not None:
                others = self._others.get(load, ())
                most = median(others) if len(others) >= c.PLAIN_LEAST else math.inf
                return min(seconds, most) * self._over_median
        return None


class Safeguard:
    """Decides by what was measured alone whether anybody is asked."""

    def __init__(self) -> None:
        self.plain = PlainRounds()
        self.allowances = Allowances()

    def allows(self, load: Load) -> bool:
        """Whether the next round may hold guesses."""
        return self.allowances[load.size].lasts and not self.plain.due(load)

    def speculated(self, load: Load, said: float, seconds: float, plain_seconds: float, without_drafts: float) -> None:
        """A round in which somebody was asked is over.

        Args:
            said: tokens of a sequence, on average.
            seconds: that it took, everything included.
            plain_seconds: of a plain round there.
            without_drafts: seconds of what plain rounds do as well.
        """
        taken = seconds / plain_seconds
        self.allowances[load.size].settle(said, taken)
        self.plain.speculated(load, said, taken, without_drafts)

    def decoded(self, load: Load, timings: Sequence[float], rounds: int = 1) -> None:
        """Some plain rounds are over, of which these were timed."""
        for seconds in timings:
            self.plain.add(load, max(seconds, _LEAST_SECONDS))
        self.allowances[load.size].settle(rounds, rounds)

    def charge(self, load: Load, seconds: float) -> None:
        """Time was spent on guesses outside of rounds."""
        plain = self.plain.seconds(load)
        if plain:
            self.allowances[load.size].settle(0.0, seconds / plain)


def _between(known: Mapping[int, deque[float]], sequences: int) -> float | None:
    """What plain rounds of so many sequences take by those of fewer and of more; None: none are near."""
    fewer = max([count for count in known if count < sequences], default=0)
    more = min([count for count in known if count > sequences], default=0)
    if not fewer or not more or more > c.NEIGHBOURS * fewer:
        return None
    place = (sequences - fewer) / (more - fewer)
    return (1 - place) * median(known[fewer]) + place * median(known[more])
