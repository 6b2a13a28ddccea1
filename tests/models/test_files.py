"""What every kind of model file shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from headstart_train.files.tensors import write_tensors


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_tensors_may_be_read_by_whoever_may_read_other_files(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)}, {"why": "test"})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == mode
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "why": "test"}
        assert torch.equal(file.get_tensor("a"), torch.ones(2))
