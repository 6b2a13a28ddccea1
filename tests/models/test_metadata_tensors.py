"""Numbers of layers that GGUF metadata hold."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from headstart.models.checkpoint import open_checkpoint


def _file(path: Path, values: object) -> Path:
    writer = gguf.GGUFWriter(path, "apertus")
    writer.add_array("xielu.beta", values)
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_they_are_tensors_of_one_number(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(_file(tmp_path / "a.gguf", [0.5, 0.25]))
    assert {name: shape for name, shape in checkpoint.shapes().items() if "beta" in name} == {
        "blk.0.xielu.beta": (1,),
        "blk.1.xielu.beta": (1,),
    }
    assert checkpoint.read("blk.1.xielu.beta").tolist() == [0.25]


def test_files_that_differ_in_them_have_other_weights(tmp_path: Path) -> None:
    digests = {open_checkpoint(_file(tmp_path / f"{each}.gguf", [each])).digest() for each in (0.5, 0.25)}
    assert len(digests) == 2


@pytest.mark.parametrize("values", [[1, 2], [0.5] * 5000])
def test_what_can_be_none_is_passed_over(values: object, tmp_path: Path) -> None:
    assert list(open_checkpoint(_file(tmp_path / "a.gguf", values)).shapes()) == ["output_norm.weight"]
