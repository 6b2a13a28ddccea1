"""Which instruction sets of the native pass run here, and which of them tests take. Nothing is compiled to say so: they
are compiled while tests are collected."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import pytest

from headstart.backends.native.isa import InstructionSet
from headstart.backends.native.loader import find_library, usable_sets
from headstart.backends.native.toolchain import find_compiler

COMPARES = "HEADSTART_TEST_SETS"
"""Set in the environment where instruction sets are compared with each other: each takes a minute to compile."""


def can_run(isa: InstructionSet) -> bool:
    """Whether its library is there, or can be made."""
    return find_compiler() is not None or find_library(isa) is not None


FASTEST = next((isa.name for isa in usable_sets()[:1] if can_run(isa)), "")
"""The set that is taken here where none is named; empty: none."""

needs_native = pytest.mark.skipif(not FASTEST, reason="no native path on this machine")


def tested_sets() -> Sequence[InstructionSet]:
    """Those that tests run: the fastest and, where sets are compared, the generic one."""
    return list(dict.fromkeys((*usable_sets()[:1], *(usable_sets("generic") if COMPARES in os.environ else ()))))


def others(names: Iterable[str]) -> list[str]:
    """Of instruction sets, by name, those of this processor that another one is compared with; what is emulated is
    compared with nothing."""
    if COMPARES not in os.environ or find_compiler() is None:
        return []
    return [name for name in names if usable_sets(name) and not name.endswith("-emulated")]
