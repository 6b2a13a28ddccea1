"""Fixtures of the tests of stretches."""

from __future__ import annotations

from pathlib import Path

import pytest
from stretch_cases import ONE_PASS, Counted, mapped_head

from headstart.heads.saving import save_head


@pytest.fixture(scope="module")
def head_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_head(mapped_head(), directory)
    save_head(mapped_head(slots=5, mask_token_id=6), directory / ONE_PASS)
    return directory


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)
