"""Fixtures of the tests of stretches."""

from __future__ import annotations

from pathlib import Path

import pytest
from stretch_cases import Counted, save_heads


@pytest.fixture(scope="module")
def head_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_heads(directory)
    return directory


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)
