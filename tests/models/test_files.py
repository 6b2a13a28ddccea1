"""What every kind of model file shares."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors import safe_open

from headstart.drafting.head_files.loading import head_place
from headstart.errors import CheckpointError
from headstart.models.files import read_json
from headstart.models.gguf_file import GgufFile
from headstart.models.safetensors_files import SafetensorsFiles
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


@pytest.mark.parametrize("read", [read_json, GgufFile, head_place, lambda path: SafetensorsFiles(path.parent)])
def test_what_may_not_be_read_is_told_as_that(read: Callable[[Path], object], tmp_path: Path) -> None:
    """Whoever runs the tests may read everything, perhaps."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    with patch("os.access", return_value=False), pytest.raises(CheckpointError, match=r"cannot be read \(Permission"):
        read(tmp_path / "model.safetensors")
