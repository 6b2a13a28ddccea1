"""Every substring of a growing text in linear space, with counts.

The suffix automaton (Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text"), built
online, one token after the other; each state stands for the substrings that end at the same places. Beyond the
textbook, a state knows how often its substrings occur and where they ended last, exactly for substrings of up to
``max_length`` tokens: the counts lie on the chain of suffix links, and a second pointer, to the longest suffix
within that length, keeps the walk along it short on repetitive text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ROOT_STATE = 0
"""The state of the empty string."""


class SuffixAutomaton:
    """States are integers; the lists are indexed by them.

    Around 0.7 KB a token: some 1.5 states, each with a dictionary of transitions.
    """

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.following: list[dict[int, int]] = [{}]
        """token -> state of the substring that it makes longer."""
        self.link: list[int] = [ROOT_STATE]
        """State of the longest suffix that occurs at more places."""
        self.length: list[int] = [0]
        """Tokens of the state's longest substring."""
        self.count: list[int] = [0]
        """Places at which the state's substrings end."""
        self.latest: list[int] = [0]
        """The last of them, counted in tokens appended."""
        self.size = 0
        """Tokens appended."""
        self._last = ROOT_STATE
        self._tip = ROOT_STATE
        self._tip_length = 0

    @property
    def tip(self) -> tuple[int, int]:
        """State and length of the longest suffix of the text within ``max_length``."""
        return self._tip, self._tip_length

    def start_text(self) -> None:
        """What follows is a text of its own: no substring spans the border."""
        self._last = self._tip = ROOT_STATE
        self._tip_length = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens: amortised O(1) steps each, and one more for each suffix that occurs elsewhere."""
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        following, link, length, count, latest = self.following, self.link, self.length, self.count, self.latest
        before = self._last
        known = following[before].get(token)
        if known is not None:
            # Only a second text meets this: its prefix occurs already.
            self._last = known if length[known] == length[before] + 1 else self._split(before, token, known)
        else:
            state = self._last = len(link)
            following.append({})
            length.append(length[before] + 1)
            count.append(0)
            latest.append(0)
            link.append(ROOT_STATE)
            while token not in following[before]:
                following[before][token] = state
                if before == ROOT_STATE:
                    break
                before = link[before]
            else:
                known = following[before][token]
                link[state] = known if length[known] == length[before] + 1 else self._split(before, token, known)

        tip, tip_length = following[self._tip][token], self._tip_length + 1
        if tip_length > self.max_length:
            tip_length = self.max_length
            if length[link[tip]] >= tip_length:
                tip = link[tip]
        self._tip, self._tip_length = tip, tip_length
        self.size = position = self.size + 1
        while tip != ROOT_STATE:
            count[tip] += 1
            latest[tip] = position
            tip = link[tip]

    def _split(self, before: int, token: int, state: int) -> int:
        """Give the substrings of ``state`` that are no longer than ``before`` and ``token`` a state of their own."""
        clone = len(self.link)
        self.following.append(self.following[state].copy())
        self.length.append(self.length[before] + 1)
        self.link.append(self.link[state])
        self.count.append(self.count[state])
        self.latest.append(self.latest[state])
        self.link[state] = clone
        while self.following[before].get(token) == state:
            self.following[before][token] = clone
            if before == ROOT_STATE:
                break
            before = self.link[before]
        return clone

    def longest_suffix(self, tokens: Sequence[int]) -> tuple[int, int]:
        """State and length of the longest suffix of ``tokens`` that occurs in the text."""
        following, link, length = self.following, self.link, self.length
        state, matched = ROOT_STATE, 0
        for token in tokens:
            while token not in following[state] and state != ROOT_STATE:
                state = link[state]
                matched = length[state]
            if token in following[state]:
                state = following[state][token]
                matched += 1
        return state, matched
