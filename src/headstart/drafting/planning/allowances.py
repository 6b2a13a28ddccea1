"""What speculation may lose, whatever the estimates say, and what plain decoding would have taken.

The time of every round is set against that of the plain rounds that would have said the same. An *allowance* holds the
difference: a small start, filled by what pays and by a share of the time, and emptied by what does not. Rounds are
plain while it is empty. So speculation never loses more than the start, the share, what it has gained before (up to a
bound), and the round in which the allowance ran out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from math import log2
from typing import NamedTuple

from headstart.drafting.base import SequenceView
from headstart.drafting.inner_sequence import adapter_of
from headstart.drafting.planning import constants as c

_LEAST_SECONDS = 1e-9
"""No round takes less."""
_SEVERAL = "several"
Size = tuple[int, int, str]


class Load(NamedTuple):
    """What the time of a plain round, and what guesses may lose, depend on."""

    sequences: int
    context: int
    """Class of the mean length of their contexts."""
    adapter: str = ""
    """The digest of the one that they all have: each changes how often guesses hold."""

    @classmethod
    def of(cls, views: Sequence[SequenceView]) -> Load:
        """Of sequences that decode together."""
        mean = sum([len(view.tokens) for view in views]) / max(len(views), 1)
        digests = {each.digest if (each := adapter_of(view)) else "" for view in views}
        adapter = digests.pop() if len(digests) == 1 else _SEVERAL
        return cls(len(views), int(c.CONTEXT_CLASSES * log2(max(mean / c.CONTEXT_LEAST, 1.0))), adapter)

    @property
    def size(self) -> Size:
        """Loads of about this many sequences, of contexts within a factor of four and of one adapter, share their
        allowances."""
        return self.sequences.bit_length(), self.context // c.CONTEXTS_TOGETHER, self.adapter


class Allowance:
    """Plain rounds' worth of time that may still be lost."""

    __slots__ = ("_most", "rounds")

    def __init__(self, start: float = c.START, most: float = c.MOST) -> None:
        self.rounds = start
        self._most = most

    @property
    def lasts(self) -> bool:
        """Whether any is left."""
        return self.rounds > 0.0

    def settle(self, plain: float, taken: float) -> None:
        """What took as long as ``taken`` plain rounds would have taken ``plain`` of them."""
        self.rounds = min(self.rounds + (1.0 + c.SHARE) * plain - taken, self._most)


class Allowances(dict[Size, Allowance]):
    """By ``Load.size``. A round of several sequences judges as many times more guesses, so fewer rounds tell."""

    def __missing__(self, size: Size) -> Allowance:
        allowance = self[size] = Allowance(max(c.START / 2 ** (size[0] - 1), c.LEAST_START))
        return allowance


class PlainRounds:
    """Seconds of plain rounds by load: the median of the last few, or what lies between those of near numbers of
    sequences."""

    def __init__(self) -> None:
        self._timings: dict[int, dict[int, deque[float]]] = defaultdict(dict)
        """[context][sequences]"""
        self._since: dict[Load, int] = defaultdict(int)
        """Rounds with guesses since one was timed."""

    def add(self, load: Load, seconds: float) -> None:
        """A plain round was timed."""
        self._timings[load.context].setdefault(load.sequences, deque(maxlen=c.PLAIN_TIMINGS)).append(seconds)
        self._since[load] = 0

    def speculated(self, load: Load) -> None:
        """A round was none."""
        self._since[load] += 1

    def due(self, load: Load) -> bool:
        """Whether a plain round is to be timed: none was, or not lately."""
        return self.seconds(load) is None or self._since[load] >= c.PLAIN_EVERY

    def seconds(self, load: Load) -> float | None:
        """Of a plain round; None: not known. Until one was timed those over somewhat shorter contexts count, which take
        less: what guesses save is then held for less than it is."""
        for context in (load.context, load.context - 1):
            known = self._timings.get(context, {})
            own = known.get(load.sequences, ())
            seconds = _median(own) if len(own) >= c.PLAIN_LEAST else _between(known, load.sequences)
            if seconds is not None:
                return seconds
        return None


class Safeguard:
    """Decides by what was measured alone whether anybody is asked."""

    def __init__(self) -> None:
        self.plain = PlainRounds()
        self.allowances = Allowances()

    def allows(self, load: Load) -> bool:
        """Whether the next round may hold guesses."""
        return self.allowances[load.size].lasts and not self.plain.due(load)

    def speculated(self, load: Load, said: float, seconds: float, plain_seconds: float) -> None:
        """A round in which somebody was asked is over.

        Args:
            said: tokens of a sequence, on average.
            seconds: that it took, everything included.
            plain_seconds: of a plain round there.
        """
        self.allowances[load.size].settle(said, seconds / plain_seconds)
        self.plain.speculated(load)

    def decoded(self, load: Load, seconds: float) -> None:
        """A plain round is over."""
        self.plain.add(load, max(seconds, _LEAST_SECONDS))
        self.allowances[load.size].settle(1.0, 1.0)

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
    return (1 - place) * _median(known[fewer]) + place * _median(known[more])


def _median(timings: Sequence[float] | deque[float]) -> float:
    return sorted(timings)[(len(timings) - 1) // 2]
