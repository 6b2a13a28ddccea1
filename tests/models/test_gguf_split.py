"""GGUF models in several files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_models import write_gguf
from tiny_models import make_model

from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(make_model("qwen3-yarn"), tmp_path_factory.mktemp("whole") / "model.gguf")


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """As gguf-split would write them (the ``gguf`` package does)."""
    write_gguf(make_model("qwen3-yarn"), tmp_path / "model.gguf", most_tensors=20)
    return sorted(tmp_path.glob("*.gguf"))


def test_parts_are_one_model_whichever_is_named(whole: Path, parts: list[Path]) -> None:
    assert len(parts) > 2
    assert parts[0].name == f"model-00001-of-{len(parts):05d}.gguf"
    one = open_checkpoint(whole)
    for part in (parts[0], parts[-1]):
        split = open_checkpoint(part)
        assert split.shapes() == one.shapes()
        assert split.digest() == one.digest()
        assert split.metadata["general.architecture"] == "qwen3"
        assert len(split.identity().stamps) == len(parts)
        for name in one.shapes():
            assert torch.equal(split.read(name), one.read(name))
            assert split.stored_bits(name) == one.stored_bits(name)


def test_a_missing_part_is_named(parts: list[Path]) -> None:
    parts[1].unlink()
    with pytest.raises(CheckpointError, match=r"of which model-00002-of-\d+\.gguf is missing"):
        open_checkpoint(parts[0])


def test_a_part_by_another_name_is_refused(parts: list[Path]) -> None:
    other = parts[0].rename(parts[0].with_name("first.gguf"))
    with pytest.raises(CheckpointError, match="is not called so"):
        open_checkpoint(other)


def test_the_wrong_part_is_refused(parts: list[Path]) -> None:
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(CheckpointError, match="is not part 2 of"):
        open_checkpoint(parts[0])


def test_an_unknown_tensor_is_refused(parts: list[Path]) -> None:
    with pytest.raises(CheckpointError, match="no tensor named"):
        open_checkpoint(parts[0]).read("absent")
