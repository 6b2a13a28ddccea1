"""Memory: what a target with its drafters takes, and a refusal in one sentence where that cannot fit."""

from __future__ import annotations

import errno
import resource
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import ConfigError

_SYSTEM = Path("/proc/meminfo")
_CONTROL_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
_OWN_PAGES = Path("/proc/self/statm")
_REFUSALS = (
    *("can't allocate memory", "not enough memory", "can't start new thread"),
    *("no memory for the", "cannot allocate memory", "failed to map segment"),
)
"""Parts of messages of PyTorch, Python, the native pass and the loader of libraries that mean a lack of memory."""


class NoRoomError(ConfigError):
    """What was asked for takes more memory than is free."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes, as they are allocated when an engine starts."""

    weights: int
    """Of the target."""
    cache: int
    """The target's keys and values, and states."""
    drafters: int
    """Weights and caches of drafters that have any, and the most that they keep of prefixes."""

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.drafters

    def __str__(self) -> str:
        parts = {"weights": self.weights, "cache": self.cache, "drafters": self.drafters}
        named = ", ".join(f"{name} {readable(size)}" for name, size in parts.items() if size)
        return f"{readable(self.total)} ({named})"

    def sentence(self, drafter: str | None = None) -> str:
        """As commands say it at their start, of a target alone or with a drafter."""
        return f"Memory{'' if drafter is None else f' with {drafter}'}: {self}."


def readable(size: float) -> str:
    """Bytes as a person reads them: 269 MB, 1.1 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def free_bytes() -> int | None:
    """Memory that can still be had, by the system, by the container's limit and by this process's own (``ulimit -v``);
    None: this system does not say."""
    found = []
    left = address_space_left()
    if left is not None:
        found.append(left)
    try:
        lines = dict(line.split(":") for line in _SYSTEM.read_text(encoding="ascii").splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError):
        pass
    for limit, used in _CONTROL_GROUPS:
        try:
            found.append(max(int(limit.read_text()) - int(used.read_text()), 0))
        except (OSError, ValueError):
            continue
    return min(found, default=None)


def address_space_left() -> int | None:
    """Bytes that this process may still allocate by its own limit (RLIMIT_AS); None: it has none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(_OWN_PAGES.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return None
    return max(limit - used, 0)


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory, or a thread's stack, could not be had."""
    if isinstance(error, NoRoomError):
        return True
    if isinstance(error, (RuntimeError, ValueError, ImportError)):
        return any(part in str(error).lower() for part in _REFUSALS)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def require_room(size: int, what: str, mend: str) -> None:
    """Refuse what does not fit: ``size`` bytes must be free.

    Raises:
        NoRoomError: they cannot; ``mend`` says what would help.
    """
    free = free_bytes()
    if free is not None and size > free:
        raise NoRoomError(f"{what} takes {readable(size)}, but {readable(free)} of memory is free; {mend}.")
