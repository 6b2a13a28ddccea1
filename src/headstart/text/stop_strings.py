"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Finds the first stop string to be completed, and holds back what may yet become one.

    The stop that is completed first wins, the longest of those completed by the same character; the text is cut
    before it, or after it where it is ``kept``. So the outcome depends on the text alone, however it is cut into
    tokens and tokens into rounds.

    It is the automaton of Aho and Corasick ("Efficient string matching", 1975): a state is the longest end of the
    text that begins some stop string, which is just what has to be held back. One dictionary look-up a character,
    amortised.
    """

    def __init__(self, stops: Iterable[str], kept: bool = False) -> None:
        self.matched: str | None = None
        """The stop string that was completed."""
        self._kept = kept
        self._children: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        """The longest stop that the state's string ends with."""
        for stop in stops:
            self._insert(stop)
        self._fallback = self._fallbacks()
        self._state = 0
        self._held = ""

    @property
    def any(self) -> bool:
        """Whether there is something to find."""
        return len(self._children) > 1

    def push(self, piece: str) -> str:
        """Take more text; the text that is now safe to show (nothing, once a stop string is completed)."""
        if self.matched is not None:
            return ""
        if not self.any:
            return piece
        text = self._held + piece
        for end, character in enumerate(piece, start=len(self._held) + 1):
            self._state = self._next(self._state, character)
            self.matched = self._match[self._state]
            if self.matched is not None:
                self._held = ""
                return text[: end if self._kept else end - len(self.matched)]
        safe = len(text) - self._depth[self._state]
        self._held = text[safe:]
        return text[:safe]

    @property
    def state(self) -> int:
        """Where the text stands; what ``after`` goes on from."""
        return self._state

    def after(self, state: int, piece: str) -> tuple[int, bool]:
        """Where a text stands that stood at ``state`` and went on with ``piece``, and whether it has completed a stop
        string by that. Nothing is remembered."""
        for character in piece:
            state = self._next(state, character)
            if self._match[state] is not None:
                return state, True
        return state, False

    def flush(self) -> str:
        """What was held back, when no more text will come."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            child = self._children[state].get(character)
            if child is None:
                child = self._children[state][character] = len(self._children)
                self._children.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = child
        if state:
            self._match[state] = stop

    def _fallbacks(self) -> list[int]:
        """For each state, the state of its longest proper suffix; breadth first, so that shorter ones are ready."""
        self._fallback = [0] * len(self._children)
        queue = list(self._children[0].values())
        for state in queue:
            for character, child in self._children[state].items():
                self._fallback[child] = self._next(self._fallback[state], character)
                queue.append(child)
            if self._match[state] is None:
                self._match[state] = self._match[self._fallback[state]]
        return self._fallback

    def _next(self, state: int, character: str) -> int:
        while state and character not in self._children[state]:
            state = self._fallback[state]
        return self._children[state].get(character, 0)
