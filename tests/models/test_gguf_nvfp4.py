"""NVFP4 in GGUF files: second scales beside the blocks, of one matrix or of stacked ones."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_blocks import random_blocks
from native_here import needs_native
from torch import Tensor

from headstart.backends.native.packing import read_matrix
from headstart.errors import CheckpointError
from headstart.models.derived import OpenWeights
from headstart.models.gguf_file import GgufFile
from headstart.models.gguf_nvfp4 import with_nvfp4
from headstart.models.gguf_types import dequantised
from headstart.models.stored import FileMatrix, MatrixPart

OUTPUTS, INPUTS, EXPERTS = 48, 192, 3
SECOND = (0.37, 1.9, 0.011)


def blocks(stacked: bool) -> np.ndarray:
    rows = OUTPUTS * (EXPERTS if stacked else 1)
    data = random_blocks("NVFP4", rows, INPUTS, np.random.default_rng(0))
    scales = data.reshape(-1, 36)[:, :4]
    scales[::3, 0], scales[::5, 1], scales[::7, 2] = 0, 127, 5  # what stands for nothing, and subnormal numbers
    return data.reshape(EXPERTS, OUTPUTS, -1) if stacked else data


def written(path: Path, data: np.ndarray, **beside: np.ndarray) -> OpenWeights:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.ffn_up.weight", data, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
    for name, values in beside.items():
        writer.add_tensor(f"blk.0.ffn_up.{name}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return with_nvfp4(GgufFile(path))


def expected(data: np.ndarray, *second: float) -> Tensor:
    values = torch.from_numpy(dequantised(data.reshape(-1, data.shape[-1]), "NVFP4")).view(*data.shape[:-1], INPUTS)
    return values * torch.tensor(second).view(-1, *[1] * (values.ndim - 1))


def test_a_second_scale_counts_for_all_of_the_matrix(tmp_path: Path) -> None:
    data = blocks(stacked=False)
    second = np.array(SECOND[:1], np.float32)
    weights = written(tmp_path / "m.gguf", data, scale=second, input_scale=np.ones(1, np.float32))
    assert set(weights.shapes()) == {"blk.0.ffn_up.weight"}
    torch.testing.assert_close(weights.read("blk.0.ffn_up.weight"), expected(data, SECOND[0]), rtol=3e-7, atol=0)
    alone = written(tmp_path / "alone.gguf", data)
    assert torch.equal(alone.read("blk.0.ffn_up.weight"), expected(data, 1.0))
    assert weights.digest() != alone.digest()


def test_stacked_matrices_have_one_each(tmp_path: Path) -> None:
    data = blocks(stacked=True)
    weights = written(tmp_path / "m.gguf", data, scale=np.array(SECOND, np.float32))
    wanted = expected(data, *SECOND)
    torch.testing.assert_close(weights.read("blk.0.ffn_up.weight"), wanted, rtol=3e-7, atol=0)
    for index in range(EXPERTS):
        torch.testing.assert_close(weights.read("blk.0.ffn_up.weight", index), wanted[index], rtol=3e-7, atol=0)


@needs_native
@pytest.mark.parametrize("stacked", [False, True])
def test_its_own_rows_are_the_same_to_the_bit(tmp_path: Path, stacked: bool) -> None:
    name, data = "blk.0.ffn_up.weight", blocks(stacked)
    second = np.array(SECOND if stacked else SECOND[:1], np.float32)
    weights = written(tmp_path / "m.gguf", data, scale=second)
    stored = weights.stored(name)
    assert stored.type == "NVFP4/16"
    for index in range(EXPERTS) if stacked else [None]:
        part = stored if index is None else stored.part(index)
        matrix = FileMatrix((MatrixPart(name, OUTPUTS, lambda: torch.empty(0), part),), INPUTS, torch.float32)
        assert torch.equal(read_matrix(matrix, torch.float32), weights.read(name, index))
    whole = np.concatenate([stored.part(i).rows() for i in range(EXPERTS)]) if stacked else stored.rows()
    assert np.array_equal(stored.rows(), whole)


def test_a_second_scale_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'blk.0.ffn_up.scale' has shape \[2\].*fetch or convert"):
        written(tmp_path / "m.gguf", blocks(stacked=True), scale=np.ones(2, np.float32))
