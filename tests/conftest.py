"""Fixtures that several rooms share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from native_here import COMPARES, tested_sets
from other_products import VARIABLE, change_products
from thinning import isa_of, runs_all, thinned
from tiny_checkpoint import write_tiny_model

from headstart.backends.native.loader import compile_library, find_library
from headstart.backends.native.toolchain import find_compiler
from headstart.errors import ConfigError
from headstart_server.memory import give_back_freed

# Models of tests are packed anew: what one test has left behind is none of another's business, nor of the user's.
os.environ["HEADSTART_PACKED_CACHE"] = "0"

if VARIABLE in os.environ:
    change_products(int(os.environ[VARIABLE]))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="thorough tests and each value, too (make test-thorough)")
    parser.addoption("--all", action="store_true", help="these, and every combination of parameters (make test-all)")


def pytest_configure(config: pytest.Config) -> None:
    """What all tests need is compiled while workers collect them."""
    if config.getoption("--thorough") or runs_all(config):
        os.environ[COMPARES] = "1"
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None) or find_compiler() is None:
        return
    needed = [isa for isa in tested_sets() if find_library(isa) is None]
    if needed:
        print(f"Compiling the native pass ({', '.join(isa.name for isa in needed)}); about a minute ...", flush=True)
        pool = ThreadPoolExecutor()
        for isa in needed:
            pool.submit(compile_library, isa)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if runs_all(config):
        return
    isas = {isa.name for isa in tested_sets()}
    runs_thorough = config.getoption("--thorough")
    kept = {item for item in items if isa_of(item) in {None, *isas}}
    kept = {item for item in kept if runs_thorough or item.get_closest_marker("thorough") is None}
    kept = set(thinned([item for item in items if item in kept], runs_thorough))
    if left := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item in kept]


def pytest_collection_finish(session: pytest.Session) -> None:
    _collect()
    if hasattr(session.config, "workerinput") and find_compiler() is not None:
        for isa in tested_sets():
            with suppress(ConfigError, OSError):  # whoever needs it says why it is not there
                compile_library(isa)


def _collect() -> None:
    """Frees what nobody has any more. What is left, modules for the most part, is not searched again: models that are
    closed collect as well, and half a second each time is much of a test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a random tiny chat model (``tiny_checkpoint``); do not write to it. Its heads are as wide as the
    native pass needs them, which takes an eighth of the time of PyTorch's."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"), head_dim=32)


@pytest.fixture(scope="session")
def torch_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The like, of a shape that PyTorch alone computes; do not write to it."""
    return write_tiny_model(tmp_path_factory.mktemp("torch-model"))


@pytest.fixture
def unread_model(tmp_path: Path) -> Path:
    """A folder that is taken for a model's until somebody reads it."""
    folder = tmp_path / "unread"
    folder.mkdir()
    (folder / "config.json").write_text("unread")
    return folder


@pytest.fixture(scope="module", autouse=True)
def memory_goes_back() -> Iterator[None]:
    """What the tests of a file have freed goes back to the system: a training tells its process to keep it
    (``memory.keep_freed``), and whoever starts an engine later asks how much is free."""
    yield
    _collect()
    give_back_freed()


@pytest.fixture
def polyglot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny Whisper (``tiny_speech``) knows languages and tasks."""
    from tiny_speech import SPEECH_VOCAB

    from headstart_speech import vocabulary

    monkeypatch.setattr(vocabulary, "MULTILINGUAL", SPEECH_VOCAB)
