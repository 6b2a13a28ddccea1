"""Headstart inside other engines: its drafters guess, the engine verifies.

The classes are imported by the engine's own process, which has its own PyTorch: nothing here sets threads, compiles, or
needs more than tokens.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """What an entry point's form, ``module:name``, names in this package: engines that split a path at its last dot
    then find ``headstart_integrations.vllm:Proposer`` as well."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), attribute)
