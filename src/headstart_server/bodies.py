"""Bodies of requests while they come in: how many bytes of them are held, over all connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_FREE_BYTES = 1 << 16
"""Of each body that count for nothing, so that short requests are read whatever comes beside them; the number of
connections bounds them."""


class Body:
    """What has come of one body."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.counted = 0
        """Bytes of the budget that it takes."""
        self.refused = False
        """Whether it had to make room for others; nothing of it is kept."""


class BodyBudget:
    """Bytes that bodies may take together, from their first byte until their request is answered.

    Where there are too few, the body that has been coming in for longest is refused: a client that stops in the middle
    of its body keeps out nobody.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._coming: dict[Body, None] = {}
        """Bodies that are not whole yet, the oldest first."""

    @contextmanager
    def held(self) -> Iterator[Body]:
        """A body that gives back what it takes at the end."""
        body = Body()
        self._coming[body] = None
        try:
            yield body
        finally:
            self._drop(body)

    def add(self, body: Body, chunk: bytes) -> None:
        """More of a body; it, or an older one, is ``refused`` where there is no room for it."""
        if body.refused:
            return
        more = max(len(body.data) + len(chunk) - _FREE_BYTES, 0) - body.counted
        while more > self._left and not body.refused:
            oldest = next((each for each in self._coming if each.counted), body)
            oldest.refused = True
            self._drop(oldest)
        if not body.refused:
            body.data += chunk
            body.counted += more
            self._left -= more

    def whole(self, body: Body) -> bytes:
        """The body, which has come in. It still counts, for its request holds it."""
        self._coming.pop(body, None)
        data, body.data = bytes(body.data), bytearray()
        return data

    def _drop(self, body: Body) -> None:
        self._coming.pop(body, None)
        self._left += body.counted
        body.counted, body.data = 0, bytearray()
