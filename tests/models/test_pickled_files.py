"""Weights in ``pytorch_model.bin``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from headstart.errors import CheckpointError
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.pickled_files import PickledFiles
from headstart.models.safetensors_files import SafetensorsFiles

TENSORS = {
    "first.weight": torch.arange(12.0).reshape(3, 4),
    "second.weight": torch.arange(6).reshape(2, 3).to(torch.bfloat16),
    "third.weight": torch.arange(8.0).reshape(2, 4).T,
    "ids": torch.arange(5),
}


class Harmful:
    """What an unrestricted unpickler would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run",)


def write(directory: Path, tensors: dict[str, Tensor] = TENSORS) -> Path:
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    torch.save(tensors, directory / "pytorch_model.bin")
    return directory


def write_sharded(directory: Path) -> Path:
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    names = list(TENSORS)
    weight_map = {}
    for number, part in enumerate((names[:2], names[2:]), 1):
        file = f"pytorch_model-{number:05d}-of-00002.bin"
        torch.save({name: TENSORS[name] for name in part}, directory / file)
        weight_map |= dict.fromkeys(part, file)
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def opened(directory: Path) -> Checkpoint:
    checkpoint = open_checkpoint(directory)
    assert isinstance(checkpoint.weights, PickledFiles)
    return checkpoint


@pytest.mark.parametrize("writer", [write, write_sharded])
def test_tensors_are_those_that_were_written(tmp_path: Path, writer: object) -> None:
    assert callable(writer)
    checkpoint = opened(writer(tmp_path))
    assert checkpoint.shapes() == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
    for name, tensor in TENSORS.items():
        assert torch.equal(checkpoint.read(name), tensor)
        assert checkpoint.read(name).dtype == tensor.dtype
    assert checkpoint.stored("second.weight").type == "BF16"
    assert checkpoint.stored("third.weight").data.tobytes() == TENSORS["third.weight"].contiguous().numpy().tobytes()
    assert not checkpoint.stored("ids").holds_weights


def test_they_are_known_as_the_same_weights_in_safetensors(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pickled = PickledFiles(write(tmp_path / "a"))
    save_file({name: tensor.contiguous() for name, tensor in TENSORS.items()}, tmp_path / "b" / "model.safetensors")
    assert pickled.digest() == SafetensorsFiles(tmp_path / "b").digest()


def test_files_older_than_archives_are_read(tmp_path: Path) -> None:
    write(tmp_path)
    torch.save(TENSORS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(opened(tmp_path).read("first.weight"), TENSORS["first.weight"])


def test_safetensors_come_first(tmp_path: Path) -> None:
    write(tmp_path)
    save_file({"first.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert set(open_checkpoint(tmp_path).shapes()) == {"first.weight"}


def test_no_code_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    torch.save({"first.weight": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than tensors"):
        open_checkpoint(tmp_path)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("size", [0, 1, 100, 600])
def test_a_damaged_file_is_refused(tmp_path: Path, size: int) -> None:
    path = write(tmp_path) / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match="damaged"):
        open_checkpoint(tmp_path)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    torch.save([torch.zeros(1)], tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="no table of tensors"):
        open_checkpoint(tmp_path)


def test_files_are_checked_against_their_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    index = tmp_path / "pytorch_model.bin.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": weight_map | {"absent": "pytorch_model-00001-of-00002.bin"}}))
    with pytest.raises(CheckpointError, match="'absent', which no file holds"):
        open_checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": {"first.weight": "../elsewhere.bin"}}))
    with pytest.raises(CheckpointError, match=r"no \.bin file beside it"):
        open_checkpoint(tmp_path)
    torch.save(TENSORS, tmp_path / "pytorch_model-00002-of-00002.bin")
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match="is in another file, too"):
        open_checkpoint(tmp_path)
