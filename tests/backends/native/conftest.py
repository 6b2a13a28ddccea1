"""Fixtures of the native tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from native_cases import forget_backends
from stretch_cases import Counted, save_heads


@pytest.fixture(scope="module", autouse=True)
def backends_of_a_file() -> Iterator[None]:
    yield
    forget_backends()


@pytest.fixture(scope="module")
def head_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_heads(directory)
    return directory


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)
