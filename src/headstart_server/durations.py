"""Times as people write them. Importing this imports nothing heavy."""

from __future__ import annotations

import math
import re

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+")


def seconds(value: object) -> float | None:
    """A time in seconds: a number of them, or as Go writes it ("5m", "1h30m"); below 0: infinite; None: None.

    Raises:
        ValueError: it is no time.
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return math.inf if value < 0 else float(value)
    text = value.strip() if isinstance(value, str) else ""
    bare = text.removeprefix("-")
    if _NUMBER.fullmatch(bare):
        length = float(bare)
    else:
        parts = _PART.findall(bare)
        if not parts or "".join(number + unit for number, unit in parts) != bare:
            raise ValueError(text)
        length = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return math.inf if text != bare else length
