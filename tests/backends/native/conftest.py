"""Fixtures of the native tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_cases import forget_backends
from stretch_cases import Counted, save_heads

_MUCH = 3 << 30
"""Bytes of a process; two of them run beside each other on a machine of 16 GB or more."""


def resident() -> int:
    """Bytes that this process holds; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


@pytest.fixture(scope="module", autouse=True)
def backends_of_a_file() -> Iterator[None]:
    yield
    if resident() > _MUCH:
        forget_backends()


@pytest.fixture(scope="module")
def head_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_heads(directory)
    return directory


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)
