"""What a server allows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServerSettings:
    """Whom a server lets in, and its limits for each request."""

    served_name: str
    """What clients call the model, and what replies call it."""
    other_names: tuple[str, ...] = ()
    """Further names that are answered to."""
    api_keys: tuple[str, ...] = ()
    """If there are none, everybody is let in."""
    allowed_hosts: tuple[str, ...] | None = LOOPBACK
    """Host names that requests may be addressed to (against DNS rebinding); None: any."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may send requests; ``*``: any."""
    spec_decode_metrics: bool = False
    """Every reply with one sample says how its guesses fared, in vLLM's form."""
    max_body_bytes: int = 2 << 20
    max_audio_bytes: int = 25 << 20
    """The same of a form with a recording."""
    max_bodies_bytes: int = 200 << 20
    """Of all bodies together that are being read or served."""
    max_audio_seconds: int = 3600
    """Of a recording: a file of few bytes may unpack to days of silence."""
    max_prompts: int = 32
    """Most prompts of one completion request."""
    max_samples: int = 16
    """The largest ``n``."""
    max_logprobs: int = 20
    max_logit_bias: int = 300
    """Entries of ``logit_bias``."""
    max_stops: int = 1024
    max_stop_length: int = 256
    """Characters of one stop string or bad word."""
    max_stop_characters: int = 1 << 13
    """Characters of all stop strings together: each takes some hundred bytes in each sample."""
    max_schema_length: int = 1 << 16
    """Characters of a schema, a regular expression, or all choices together."""
    max_tools: int = 128
    slot_save_path: Path | None = None
    """Directory of saved slots; None: none are saved."""
    slot_save_bytes: int = 4 << 30
    """Of all files there, of each key."""
    retry_after: int = 1
    """Seconds that a client is asked to wait if the queue is full."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that are answered to, the model's first."""
        return (self.served_name, *self.other_names)
