"""Fixtures that several rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_checkpoint import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a random tiny chat model (``tiny_checkpoint``); do not write to it."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))
