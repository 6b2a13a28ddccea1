"""What a server allows."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServerSettings:
    """Bounds and doors of a server; every one of them holds for each single request."""

    served_name: str
    """What clients call the model."""
    api_keys: tuple[str, ...] = ()
    """Without any, everybody is let in."""
    allowed_hosts: tuple[str, ...] | None = LOOPBACK
    """Host names that requests may be addressed to (against DNS rebinding); None: any."""
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 2 << 20
    max_prompts: int = 32
    """Prompts of one completion request."""
    max_samples: int = 16
    """``n`` at most."""
    max_logprobs: int = 20
    max_logit_bias: int = 300
    """Entries of ``logit_bias``."""
    max_stops: int = 16
    max_stop_length: int = 256
    """Characters of one stop string."""
    max_schema_length: int = 1 << 16
    """Characters of a schema, a regular expression, or all choices."""
    max_tools: int = 128
    retry_after: int = 1
    """Seconds that a client is asked to wait where the queue is full."""
