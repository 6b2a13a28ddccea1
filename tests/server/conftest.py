"""Engines over a tiny model, for the tests of the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart import LLM
from headstart.loading import Model, load_model


@pytest.fixture(scope="session")
def model(tiny_model_dir: Path) -> Model:
    return load_model(tiny_model_dir, "fp32")


@pytest.fixture
def llm(model: Model) -> LLM:
    return LLM(model, "suffix", more_drafters=["ngram", "random"], prefix_caching=True, tolerant=True)


@pytest.fixture
def plain(model: Model) -> LLM:
    return LLM(model, "none")
