"""Adapters of sequences, and what keeps those apart that have different ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Adapter:
    """A LoRA adapter that the backend has made ready. Whoever holds it may run it, whether or not it is still known."""

    name: str
    path: str
    digest: str
    compiled: object


def salted(salt: str, adapter: Adapter | None) -> str:
    """A salt that requests of the same salt and adapter alone have."""
    if adapter is not None:
        return f"\1{adapter.digest} {salt}"
    return f"\1{salt}" if salt.startswith("\1") else salt
