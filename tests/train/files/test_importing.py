"""Heads that others published: found, read by what their layer numbers mean, kept with every digit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import EAGLE1, EAGLE3, TARGET, eagle1_tensors, eagle3_tensors, write

from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import CheckpointError, ConfigError
from headstart_train.files import importing
from headstart_train.files.importing import LayerNumbers, import_head, locate_head, stored_dtype

LAYERS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("named", "numbers", "taps"),
    [
        ([2, 4, 5], "auto", (2, 4, 5)),
        ([1, 3, 4], "auto", (2, 4, 5)),
        ([1, 3, 6], "auto", (1, 3, 6)),
        ([1, 3, 6], "outputs", (2, 4, 7)),
        ([1, 3, 4], "inputs", (1, 3, 4)),
        ([1, 3, 7], "outputs", (2, 4, 8)),
        ([], "auto", (2, 4, 5)),
    ],
)
def test_layers_by_their_inputs_or_outputs(
    named: list[int], numbers: LayerNumbers, taps: tuple[int, ...], tmp_path: Path
) -> None:
    described = EAGLE3 | {"eagle_config": {LAYERS: named, "use_aux_hidden_state": True}}
    head = import_head(write(tmp_path, described, eagle3_tensors()), TARGET, numbers)
    assert isinstance(head, EagleHead)
    assert head.config.taps == taps


def test_numbers_that_cannot_mean_that(tmp_path: Path) -> None:
    described = EAGLE3 | {"eagle_config": {LAYERS: [1, 3, 8]}}
    with pytest.raises(CheckpointError, match="this target has 8"):
        import_head(write(tmp_path / "a", described, eagle3_tensors()), TARGET, "outputs")
    without = {key: value for key, value in EAGLE3.items() if key != "eagle_config"}
    with pytest.raises(CheckpointError, match="names no layers"):
        import_head(write(tmp_path / "b", without, eagle3_tensors()), TARGET, "inputs")
    with pytest.raises(CheckpointError, match="names no layers"):
        import_head(write(tmp_path / "c", EAGLE1, eagle1_tensors()), TARGET, "outputs")


@pytest.mark.parametrize(
    ("stored", "kept"),
    [(torch.float16, torch.float16), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)],
)
def test_no_digit_is_lost(stored: torch.dtype, kept: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: t.to(stored) if t.dim() > 1 else t for name, t in eagle3_tensors().items()}
    assert stored_dtype(write(tmp_path / "a", EAGLE3, tensors)) is kept
    mixed = tensors | {"fc.weight": tensors["fc.weight"].float()}
    assert stored_dtype(write(tmp_path / "b", EAGLE3, mixed)) is torch.float32


def test_where_a_head_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetched(hub_id: str, revision: str | None, mend: str, files: Any) -> Path:
        asked.append((hub_id, revision, "pytorch_model.bin" in files))
        return tmp_path

    monkeypatch.setattr(importing, "fetch", fetched)
    assert locate_head(str(tmp_path)) == tmp_path
    assert locate_head("org/head", "main") == tmp_path
    assert asked == [("org/head", "main", True)]
    with pytest.raises(ConfigError, match="leave revision out"):
        locate_head(str(tmp_path), "main")
    with pytest.raises(CheckpointError, match="hub id"):
        locate_head("nowhere/at/all")
