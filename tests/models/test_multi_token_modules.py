"""Multi-token modules of a checkpoint: how many there are, where, and what is said of damaged ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_modules import WRITERS, alone, written
from multi_token_models import NATIVE_SIZES, write_modules
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_model

from headstart.backends.native.backend import NativeBackend
from headstart.backends.native.loader import load_library
from headstart.backends.native.module_pass import NativeModulePass
from headstart.backends.torch.backend import TorchBackend
from headstart.backends.torch.multi_token_pass import MultiTokenPass
from headstart.drafting.heads.head_pass import DraftRows
from headstart.drafting.heads.tables import TargetTables
from headstart.errors import CheckpointError
from headstart.loading.beside import modules_beside
from headstart.models.checkpoint import open_checkpoint
from headstart.models.multi_token_modules import MultiTokenModules, load_multi_token
from headstart.models.weight_loading import config_of, load_decoder
from headstart.passes.backend import Backend
from headstart.passes.batch import stream_taps
from passes import Rows, make_pass


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


# DeepSeek-V4's module reads four streams, and in folders has a head of its own for them: the next test.
@pytest.mark.parametrize("family", [family for family in WRITERS if family != "deepseek_v4"])
def test_those_of_gguf_files_are_those_of_folders(family: str, tmp_path: Path) -> None:
    """What they say is the same, also where a file stores norms or heads in another way."""
    reference, path = written(family, tmp_path)
    spoken = []
    size = reference.model.config.get_text_config().hidden_size
    hidden = torch.randn(6, size, generator=torch.Generator().manual_seed(1))
    for source in (tmp_path, path):
        checkpoint = open_checkpoint(source)
        config, weights = load_decoder(checkpoint, torch.float32)
        assert config.num_layers == 3
        found = load_multi_token(checkpoint, config, torch.float32)
        assert found is not None
        tables = TargetTables(weights.embedding, weights.head.weight)
        running = MultiTokenPass(found, tables, torch.float32)
        tokens = np.array([5, 17, 3, 44, 9, 61], dtype=np.int32)
        spoken.append(running.read(tokens, hidden, [DraftRows(running.new_cache(), 6)])[1][0])
    torch.testing.assert_close(spoken[1], spoken[0], rtol=2e-4, atol=2e-4)
    wanted = reference.logits(reference.states([1, *tokens.tolist()], hidden)[0][-1])
    torch.testing.assert_close(spoken[0], wanted.detach(), rtol=2e-4, atol=2e-4)


def test_a_module_of_several_streams_in_a_gguf_file(tmp_path: Path) -> None:
    """They become one state as the model's do."""
    reference, path = written("deepseek_v4", tmp_path, **NATIVE_SIZES["deepseek_v4"])
    (parts,) = reference.parts
    checkpoint = open_checkpoint(path)
    config, weights = load_decoder(checkpoint, torch.float32)
    assert config.num_layers == 3
    found = load_multi_token(checkpoint, config, torch.float32)
    assert found is not None
    tables = TargetTables(weights.embedding, weights.head.weight)
    running: list[Any] = [MultiTokenPass(found, tables, torch.float32)]
    running += [NativeModulePass(found, tables, "fp32")] if load_library() else []
    tokens = np.array([5, 17, 3, 44, 9, 61, 7, 8, 9], dtype=np.int32)
    streams = torch.randn(9, reference.width, generator=torch.Generator().manual_seed(1))
    reference.parts[0] = {name: part for name, part in parts.items() if name not in ("fn", "base", "scale")}
    wanted = reference.logits(reference.states([1, *tokens.tolist()], streams)[0][-1])
    for each in running:
        said = each.read(tokens, streams, [DraftRows(each.new_cache(), 9)])[1][0]
        torch.testing.assert_close(said, wanted.detach(), rtol=2e-4, atol=2e-4)


def test_a_pass_shows_all_streams(tmp_path: Path) -> None:
    """Behind the last layer, where their mean is what a tap shows."""
    write_modules("deepseek_v4", tmp_path, **NATIVE_SIZES["deepseek_v4"])
    config, weights = load_decoder(open_checkpoint(tmp_path), torch.float32)
    backends: list[Backend] = [TorchBackend(config, weights)]
    backends += [NativeBackend(config, weights, "fp32", 2)] if load_library() else []
    taps, found = stream_taps(4), []
    for each in backends:
        batch = make_pass([Rows([5, 17, 3], 0, range(1))], taps=(3, *taps))
        shown = each.forward(batch, each.allocate_cache(1, 32))
        found.append(np.stack([shown.hidden[tap] for tap in taps]))
        np.testing.assert_allclose(found[-1].mean(0), shown.hidden[3], rtol=1e-5, atol=1e-5)
        assert len(np.unique(found[-1].round(3), axis=0)) == 4
        np.testing.assert_allclose(found[-1], found[0], rtol=1e-4, atol=1e-4)


def test_two_modules_of_a_gguf_file(tmp_path: Path) -> None:
    _, path = written("glm4_moe", tmp_path, 2)
    from_gguf, from_folder = modules_of(path), modules_of(tmp_path)
    assert from_gguf is not None
    assert from_folder is not None
    assert len(from_gguf.modules) == 2
    for ours, own in zip(from_gguf.modules, from_folder.modules, strict=True):
        assert torch.equal(ours.projection.weight, own.projection.weight)


def test_a_gguf_file_may_leave_the_last_norm_to_the_model(tmp_path: Path) -> None:
    reference, path = written("qwen3_5_text", tmp_path, without="shared_head_norm")
    found = modules_of(path)
    assert found is not None
    assert torch.equal(found.modules[0].final_norm.weight, reference.model.model.norm.weight + 1)


@pytest.mark.parametrize("family", ["qwen3_5_text", "deepseek_v3"])
def test_a_gguf_file_of_modules_alone(family: str, tmp_path: Path) -> None:
    """As llama.cpp's converter writes with ``--mtp``: no decoder layer, but tables and the last norm."""
    _, path = written(family, tmp_path)
    sidecar = alone(path, tmp_path / "mtp-tiny.gguf")
    found, whole = modules_of(sidecar), modules_of(path)
    assert found is not None
    assert whole is not None
    assert found.config == replace(whole.config, name=found.config.name)
    assert torch.equal(found.modules[0].projection.weight, whole.modules[0].projection.weight)
    with pytest.raises(CheckpointError, match="holds multi-token modules alone"):
        load_decoder(open_checkpoint(sidecar), torch.float32)
    (tmp_path / "mtp-broken.gguf").write_bytes(b"GGUF")
    (tmp_path / "hub" / "org").mkdir(parents=True)
    assert modules_beside(path, whole.config) is None  # of so many layers
    config = config_of(open_checkpoint(path))
    assert modules_beside(path, config) == sidecar
    assert modules_beside(path, replace(config, hidden_size=32)) is None
    cached = [("org/tiny-GGUF", sidecar.rename(tmp_path / "hub" / "org" / sidecar.name))]
    refused: list[str] = []
    assert modules_beside(path, config) is None
    assert modules_beside(path, config, cached=cached) == cached[0][1]
    assert modules_beside(path, replace(config, hidden_size=32), lambda *why: refused.append(why[1]), cached) is None
    assert not any("shape" in why for why in refused)


def test_tables_of_their_own_are_used(tmp_path: Path) -> None:
    write_modules("deepseek_v3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = torch.randn(tensors["lm_head.weight"].shape, generator=torch.Generator().manual_seed(2))
    tensors["model.layers.3.shared_head.head.weight"] = head
    save_file(tensors, tmp_path / "model.safetensors")
    found = modules_of(tmp_path)
    assert found is not None
    assert found.embedding is None
    assert [torch.equal(each.tensor(), head) for each in found.heads] == [True]


@pytest.mark.parametrize("alike", [True, False])
def test_each_module_may_have_a_head_of_its_own(alike: bool, tmp_path: Path) -> None:
    """One head is kept where all are the same."""
    reference = write_modules("step3p7", tmp_path, 2)
    tensors = load_file(tmp_path / "model.safetensors")
    first, second = (f"model.layers.{number}.transformer.shared_head.output.weight" for number in (3, 4))
    if alike:
        tensors[second] = tensors[first].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    found = modules_of(tmp_path)
    assert found is not None
    assert (len(found.modules), len(found.heads)) == (2, 1 if alike else 2)
    for module, own in enumerate(found.heads):
        assert torch.equal(own.tensor(), reference.parts[module]["head"])
        assert found.head_of(module) is own


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
