"""Types of GGUF tensors that the package of this name does not know."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_blocks import add_blocks, type_of

from headstart.errors import CheckpointError
from headstart.models.gguf_file import GgufFile
from headstart.models.gguf_types import CODEBOOK_TYPES, codebook, dequantised, gguf_types


def _blocks(levels: list[int], unit: float) -> np.ndarray:
    return np.concatenate((np.array([unit], np.float16).view(np.uint8), np.array(levels, np.uint8)))


def _file(path: Path, kind: str, *tensors: np.ndarray) -> GgufFile:
    writer = gguf.GGUFWriter(path, "llama")
    for index, data in enumerate(tensors):
        add_blocks(writer, f"blk.{index}.weight", data, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


def test_a_bit_is_one_unit_or_minus_one(tmp_path: Path) -> None:
    file = _file(tmp_path / "a.gguf", "Q1_0", _blocks([0b00000101, *[255] * 15], 0.5)[None])
    values = file.read("blk.0.weight")
    assert values.shape == (1, 128)
    assert values[0, :8].tolist() == [0.5, -0.5, 0.5, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert (values[0, 8:] == 0.5).all()


@pytest.mark.parametrize(("kind", "block"), [("Q2_0", 64), ("Q2_0/128", 128)])
@pytest.mark.parametrize("count", [1, 3])
def test_blocks_of_two_bits_are_as_long_as_their_room(kind: str, block: int, count: int, tmp_path: Path) -> None:
    """Rows are long enough that a tensor read as of the other kind would not end where it does."""
    row = np.tile(_blocks([0b11100100, *[0] * (block // 4 - 1)], 2.0), 2048 // block)
    file = _file(tmp_path / "a.gguf", kind, *[row[None]] * count)
    wanted = torch.full((1, 2048), -2.0)
    for at in range(0, 2048, block):
        wanted[0, at : at + 4] = torch.tensor([-2.0, 0.0, 2.0, 4.0])
    for index in range(count):
        assert file.stored(f"blk.{index}.weight").type == kind
        assert torch.equal(file.read(f"blk.{index}.weight"), wanted)


def test_a_number_that_nobody_has_is_none() -> None:
    assert gguf_types(4) == gguf_types(1000) == ()


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    _file(path, "Q1_0", _blocks([0] * 16, 1.0)[None])
    raw = path.read_bytes()
    path.write_bytes(raw.replace((128).to_bytes(8, "little"), (96).to_bytes(8, "little"), 1))
    with pytest.raises(CheckpointError, match="impossible shape"):
        GgufFile(path)


MAGNITUDES = {
    **dict.fromkeys(("IQ1_S", "IQ1_M"), (-7, 1, 9)),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), (8, 25, 43)),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}


@pytest.mark.parametrize("kind", CODEBOOK_TYPES)
def test_a_codebook_says_the_magnitudes_of_points(kind: str) -> None:
    """As the block that begins with a point's number has them: the least scale, all signs and deltas plus."""
    places = codebook(kind)
    assert places.dtype == np.uint8
    assert places.shape[1] == (4 if kind.startswith("IQ3") else 8)
    unit = {"IQ3_XXS": 4.0, "IQ3_S": 1.0}.get(kind, 8.0)
    for point in (0, 1, 117, 255):
        block = np.zeros((1, type_of(kind).nbytes), np.uint8)
        if kind == "IQ1_M":
            block[0, [0, 53, 55]] = point, 0x80, 0x40
        else:
            block[0, :2] = np.array([unit], np.float16).view(np.uint8)
            block[0, 2] = point
        values = dequantised(block, kind)[0, : places.shape[1]]
        assert values.tolist() == [MAGNITUDES[kind][place] for place in places[point]]
