"""Multi-token modules of a checkpoint: how many there are, where, and what is said of damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_models import write_gguf
from multi_token_models import write_modules
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_model

from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.multi_token import MultiTokenModules, load_multi_token
from headstart.models.weight_loading import config_of


def modules_of(directory: Path) -> MultiTokenModules | None:
    checkpoint = open_checkpoint(directory)
    return load_multi_token(checkpoint, config_of(checkpoint), torch.float32)


@pytest.mark.parametrize(("family", "count"), [("deepseek_v3", 2), ("mellum", 1), ("mimo", 3)])
def test_all_of_them_are_found(family: str, count: int, tmp_path: Path) -> None:
    reference = write_modules(family, tmp_path, count)
    found = modules_of(tmp_path)
    assert found is not None
    assert found.config.num_layers == len(found.modules) == count
    assert found.hidden_first == (family == "mimo")
    for own, parts in zip(found.modules, reference.parts, strict=True):
        assert torch.equal(own.embedding_norm.weight, parts["embedding"])
        assert torch.equal(own.hidden_norm.weight, parts["hidden"])
        assert torch.equal(own.final_norm.weight, parts["final"])
        assert torch.equal(own.projection.weight, parts["projection"])


def test_those_of_gguf_files_are_found(tmp_path: Path) -> None:
    reference = write_modules("glm4_moe", tmp_path, 2)
    theirs = {"embedding": "enorm", "hidden": "hnorm", "projection": "eh_proj", "final": "shared_head_norm"}
    around = [{theirs[part]: tensor for part, tensor in parts.items()} for parts in reference.parts]
    path = write_gguf(reference.model, tmp_path / "tiny.gguf", modules=around)
    from_gguf, from_folder = modules_of(path), modules_of(tmp_path)
    assert from_gguf is not None
    assert from_folder is not None
    assert len(from_gguf.modules) == 2
    for ours, own in zip(from_gguf.modules, from_folder.modules, strict=True):
        assert torch.equal(ours.final_norm.weight, own.final_norm.weight)
        assert torch.equal(ours.projection.weight, own.projection.weight)
        assert torch.equal(ours.layer.mixer.output.weight, own.layer.mixer.output.weight)


def test_other_families_have_none(tmp_path: Path) -> None:
    assert modules_of(write_tiny_model(tmp_path)) is None


def test_layers_are_like_the_last_or_like_the_first_with_a_window(tmp_path: Path) -> None:
    write_modules("mellum", tmp_path / "mellum")
    found = modules_of(tmp_path / "mellum")
    assert found is not None
    assert found.config.layers[0].window == 7
    write_modules("glm4_moe", tmp_path / "glm")
    found = modules_of(tmp_path / "glm")
    assert found is not None
    assert found.config.layers[0].channel == "experts"


@pytest.mark.parametrize("lost", ["eh_proj.weight", "self_attn.o_proj.weight"])
def test_what_is_missing_is_named(lost: str, tmp_path: Path) -> None:
    write_modules("deepseek_v3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[f"model.layers.3.{lost}"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"lacks model\.layers\.3\.{lost}"):
        modules_of(tmp_path)
