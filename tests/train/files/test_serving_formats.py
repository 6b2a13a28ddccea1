"""EAGLE-3 heads for SGLang and SpecForge: the keys, shapes and layer numbers that their sources read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import EAGLE3, HIDDEN, TARGET, VOCAB, eagle3_tensors, matrices, write
from safetensors.torch import load_file

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.formats import TrainedHead
from headstart.drafting.heads.tables import TargetTables
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import CheckpointError
from headstart_train.files.heads import export_head
from headstart_train.files.importing import import_head

TABLES = TargetTables(torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN))
LAYERS = "eagle_aux_hidden_state_layer_ids"


def made(tmp_path: Path, more: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> TrainedHead:
    return load_head(write(tmp_path / "in", EAGLE3 | (more or {}), eagle3_tensors() | (tensors or {})), TARGET)


def written(head: TrainedHead, kind: str, out: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    export_head(head, kind, out, TABLES, "org/target")
    return json.loads((out / "config.json").read_text()), load_file(out / "model.safetensors")


@pytest.mark.parametrize("kind", ["sglang", "specforge"])
def test_layers_are_numbered_by_their_outputs(kind: str, tmp_path: Path) -> None:
    """SGLang adds one to what a head names (``set_eagle3_layers_to_capture``); SpecForge's usual ones are one less."""
    head = made(tmp_path, {"eagle_config": {LAYERS: [2, 4, 5], "use_aux_hidden_state": True}})
    description, tensors = written(head, kind, tmp_path / "out")
    assert description["eagle_config"] == {LAYERS: [1, 3, 4], "use_aux_hidden_state": True}
    assert description["architectures"] == ["LlamaForCausalLMEagle3"]
    for name, tensor in load_file(tmp_path / "in" / "model.safetensors").items():
        assert torch.equal(tensors[name].to(tensor.dtype), tensor)
    again = load_head(tmp_path / "out", TARGET)
    assert isinstance(again, EagleHead)
    assert isinstance(head, EagleHead)
    assert again.config == head.config
    assert (again.embedding is not None) == (kind == "specforge")


@pytest.mark.parametrize("kind", ["sglang", "specforge"])
def test_unusual_layers_come_back_by_name(kind: str, tmp_path: Path) -> None:
    head = made(tmp_path)
    assert isinstance(head, EagleHead)
    assert head.config.taps == (2, 3, 5)
    written(head, kind, tmp_path / "out")
    again = import_head(tmp_path / "out", TARGET, "outputs")
    assert isinstance(again, EagleHead)
    assert again.config == head.config


@pytest.mark.parametrize("kind", ["sglang", "specforge"])
def test_both_tables_are_always_there(kind: str, tmp_path: Path) -> None:
    whole = eagle3_tensors(draft_vocab=VOCAB)
    del whole["d2t"], whole["t2d"]
    head = load_head(write(tmp_path / "in", EAGLE3 | {"draft_vocab_size": VOCAB}, whole), TARGET)
    _, tensors = written(head, kind, tmp_path / "out")
    assert tensors["d2t"].tolist() == [0] * VOCAB
    assert tensors["t2d"].tolist() == [True] * VOCAB
    again = load_head(tmp_path / "out", TARGET)
    assert isinstance(again, EagleHead)
    assert not again.config.reduced


def test_specforge_norms_what_it_says_only_without_a_false_entry(tmp_path: Path) -> None:
    assert "norm_output" not in written(made(tmp_path), "specforge", tmp_path / "a")[0]
    normed = made(tmp_path, {"norm_output": True})
    assert written(normed, "specforge", tmp_path / "b")[0]["norm_output"] is True
    assert written(made(tmp_path), "sglang", tmp_path / "c")[0]["norm_output"] is False


FURTHER = matrices("layers.1.", HIDDEN) | {
    f"layers.1.{name}.weight": torch.rand(HIDDEN) for name in ("input_layernorm", "post_attention_layernorm")
}


def test_sglangs_further_layers_call_their_norm_otherwise(tmp_path: Path) -> None:
    head = made(tmp_path, {"num_hidden_layers": 2}, FURTHER)
    _, tensors = written(head, "sglang", tmp_path / "out")
    assert torch.equal(tensors["layers.1.hidden_norm.weight"], FURTHER["layers.1.input_layernorm.weight"])
    assert "layers.1.input_layernorm.weight" not in tensors
    assert "midlayer.input_layernorm.weight" in tensors
    back = import_head(tmp_path / "out", TARGET, "outputs")
    assert isinstance(back, EagleHead)
    assert back.config == head.config
    assert all(torch.equal(own, back.get_parameter(name)) for name, own in head.named_parameters())


@pytest.mark.parametrize(
    ("kind", "more", "tensors", "fault"),
    [
        ("sglang", {"norm_before_residual": True}, {}, "norm_before_residual"),
        ("specforge", {"norm_before_residual": True}, {}, "norm_before_residual"),
        ("sglang", {"eagle_config": {LAYERS: [0, 3, 5]}}, {}, "embeddings themselves"),
        ("specforge", {"num_hidden_layers": 2}, FURTHER, "has 2 layers"),
        ("specforge", {"norm_before_fc": True}, {"input_norm.weight": torch.ones(3 * HIDDEN)}, "norm over all"),
        (
            "specforge",
            {"eagle_config": {LAYERS: [2, 5]}},
            {"fc.weight": torch.ones(HIDDEN, 2 * HIDDEN)},
            "reads 2 layers",
        ),
    ],
)
def test_what_they_cannot_compute_is_refused(
    kind: str, more: dict[str, Any], tensors: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=fault):
        written(made(tmp_path, more, tensors), kind, tmp_path / "out")
    assert not (tmp_path / "out").exists()
