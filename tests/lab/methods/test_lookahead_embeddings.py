"""PaSS's embeddings in files: a round trip, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from head_cases import TARGET
from safetensors.torch import load_file, save_file

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.tables import TargetTables
from headstart.errors import CheckpointError
from headstart_lab.methods.lookahead_embeddings.head import LookaheadEmbeddings
from headstart_train.files.heads import export_head, save_head


def saved(directory: Path) -> LookaheadEmbeddings:
    head = LookaheadEmbeddings(3, TARGET.hidden_size)
    torch.manual_seed(1)
    head.begin_like(torch.randn(50, TARGET.hidden_size) * 3 + 1, 2.0)
    save_head(head, directory, {"step": 7})
    return head


def test_round_trip(tmp_path: Path) -> None:
    head = saved(tmp_path)
    again = load_head(tmp_path, TARGET)
    assert isinstance(again, LookaheadEmbeddings)
    assert torch.equal(again.embeddings, head.embeddings)
    known = json.loads((tmp_path / "config.json").read_text())
    assert (known["headstart_head"], known["slots"], known["headstart"]) == ("pass", 3, {"step": 7})


def test_they_begin_as_the_targets_embeddings_are_spread() -> None:
    head = LookaheadEmbeddings(400, 2)
    head.begin_like(torch.tensor([[1.0, 10.0], [3.0, 10.0]]), 2.0)
    assert head.embeddings[:, 0].mean().item() == pytest.approx(4, abs=0.5)
    assert head.embeddings[:, 0].std().item() == pytest.approx(2 * 2**0.5, rel=0.2)
    assert (head.embeddings[:, 1] == 20).all()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(CheckpointError, match=f"of {TARGET.hidden_size} numbers"):
        load_head(tmp_path, replace(TARGET, hidden_size=TARGET.hidden_size + 2))
    tensors = load_file(tmp_path / "model.safetensors")
    for wrong, named in (
        ({}, "embeddings is missing"),
        ({**tensors, "more": torch.zeros(1)}, "more is not part"),
        ({"embeddings": tensors["embeddings"][:2].contiguous()}, r"embeddings is \[2, "),
    ):
        save_file(wrong, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=named):
            load_head(tmp_path, TARGET)


def test_no_other_project_has_a_form_for_them(tmp_path: Path) -> None:
    head = saved(tmp_path)
    tables = TargetTables(torch.zeros(5, TARGET.hidden_size), torch.zeros(5, TARGET.hidden_size))
    for name in ("medusa", "eagle", "eagle3", "speculators"):
        with pytest.raises(CheckpointError, match="'pass' has no form"):
            export_head(head, name, tmp_path / "out", tables, "target")  # type: ignore[arg-type]
