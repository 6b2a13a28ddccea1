"""How large an engine is: its limits, and the room of the target's cache."""

from __future__ import annotations

from dataclasses import replace

from headstart.common.enumerations import CacheType
from headstart.common.memory import require_room
from headstart.engine.schedule import Limits
from headstart.errors import ConfigError
from headstart.passes.backend import Backend
from headstart.passes.runner import cache_bytes_per_token, state_bytes

_CACHE_BYTES = 1 << 30
_STATES_BYTES = 1 << 30
_FEWEST_STATES = 4


def engine_limits(context: int, max_batch_size: int, max_rows: int | None, guesses: int, max_source: int = 0) -> Limits:
    """Limits of an engine for sequences of ``context`` tokens, with room for so many guesses in a pass, and for
    ``max_source`` positions of what an encoder reads.

    Raises:
        ConfigError: a number is below 1.
    """
    for name, value in (("max_batch_size", max_batch_size), ("max_rows", max_rows)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be 1 or more.")
    limits = Limits(max_sequences=max_batch_size, max_context=context, max_source=max_source)
    limits = replace(limits, draft_rows=max(limits.draft_rows, guesses))
    return limits if max_rows is None else replace(limits, max_rows=max_rows)


def state_room(backend: Backend, limits: Limits) -> int:
    """Slots of states, where the model keeps any: two for each sequence and one for each guess, as many again for
    later; about 1 GiB at most. With fewer, fewer sequences decode together, and fewer guesses are made.

    Raises:
        ConfigError: there is not enough memory.
    """
    size = state_bytes(backend)
    if not size:
        return 0
    wanted = 2 * (2 * limits.max_sequences + limits.draft_rows)
    count = max(min(wanted, _STATES_BYTES // size), _FEWEST_STATES)
    require_room(
        count * size,
        f"room for {count} states of its recurrent layers",
        "give a smaller max_batch_size or draft_tokens",
    )
    return count


def cache_room(backend: Backend, limits: Limits, cache_tokens: int | None, kind: CacheType = CacheType.AUTO) -> int:
    """Tokens of the target's cache, those of drafts and of encoder memories included; ``cache_tokens`` None: about
    1 GiB, but at least one whole context, and one of the encoder.

    Raises:
        ConfigError: there is not enough memory, or the backend has no cache of that type.
    """
    size, context = cache_bytes_per_token(backend, kind), limits.max_context + limits.max_source
    if cache_tokens is None:
        cache_tokens = min(max(_CACHE_BYTES // size, context), limits.max_sequences * context)
    require_room(
        (cache_tokens + limits.draft_rows) * size,
        f"a cache of {cache_tokens} tokens beside drafts of {limits.draft_rows}",
        "give a smaller max_context, max_batch_size, cache_tokens, draft_tokens or tree_nodes",
    )
    return cache_tokens + limits.draft_rows
