"""Fixtures of the tests of stretches."""

from __future__ import annotations

from pathlib import Path

import pytest
from stretch_cases import Counted
from test_native_heads import random_head

from headstart.models.heads.saving import save_head


@pytest.fixture(scope="module")
def head_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_head(random_head(), directory)
    return directory


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)
