"""The errors that Headstart raises on purpose.

Each message is one sentence that names the field, the value and the mend. The command line prints it as it
is; a server puts it into the error object of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


class HeadstartError(Exception):
    """Base of every error a caller can cause or mend."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    """A message as terminals may have it: names of foreign files may hold codes that steer them."""
    return re.sub("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda match: repr(match[0])[1:-1], text)


class ConfigError(HeadstartError, ValueError):
    """A setting is missing, unknown, out of range, or does not fit another one."""


class RequestError(HeadstartError, ValueError):
    """One request cannot be served; no other request is touched.

    ``field``: what of the request is at fault, by the name of its parameter; None: nothing in particular.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class LogitsError(RequestError):
    """The model's logits hold a value that is not a finite number: the request itself is not to blame."""


class CheckpointError(HeadstartError):
    """A model file is missing, damaged, or does not hold what its configuration promises."""


class UnsupportedModelError(CheckpointError):
    """A model is sound, as far as its description goes, but of a kind that Headstart has no description of."""


class DrafterError(HeadstartError):
    """A drafter of another package failed, by no fault of Headstart or the request; ``__cause__`` says how."""


class CacheError(HeadstartError):
    """The key-value cache was asked for what it cannot give (unknown sequence, path out of range)."""


class OutOfBlocksError(CacheError):
    """The cache has too few free blocks; nothing was changed."""


def meant(given: object, known: Iterable[str]) -> str:
    """How a message about an unknown name ends: what was probably meant, and what there is."""
    names = list(map(str, known))
    if near := closest(str(given), names):
        return f"did you mean {near!r}? Choose one of {', '.join(names)}."
    return f"choose one of {', '.join(names)}."


def closest(given: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one is probably meant to be; None: it is like none of them."""
    folded = {name.lower().replace("_", "-"): name for name in known}
    near = get_close_matches(given.lower().replace("_", "-"), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def require_utf8(text: str, field: str) -> None:
    """Refuse half of a surrogate pair, which nothing can say or read: it has no UTF-8 form.

    Raises:
        RequestError: ``text``, which is or is part of ``field``, holds one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{ascii(field)[1:-1]} cannot be written as UTF-8: it holds \\u{ord(text[error.start]):04x}, half of a "
            "surrogate pair; remove it.",
            field,
        ) from None
