"""Fixtures of the tests of stretches."""

from __future__ import annotations

from pathlib import Path

import pytest
from stretch_cases import Counted, mapped_head

from headstart.heads.saving import save_head


@pytest.fixture(scope="module")
def head_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_head(mapped_head(), directory)
    return directory


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)
