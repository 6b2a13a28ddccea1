"""What a model is computed in where nobody says, and what is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf_blocks import write_llama
from tiny_checkpoint import write_tiny_model

import headstart.common.memory as memory
from headstart import LLM
from headstart.backends.native.loader import load_library
from headstart.common.enumerations import Precision
from headstart.errors import ConfigError
from headstart.loading.model import create_backend
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.gguf_file import GgufFile
from headstart.models.stored import StoredTensor
from headstart.models.weight_loading import load_decoder
from headstart.models.weights import DecoderWeights


def load(directory: Path, types: dict[str, str]) -> tuple[ModelConfig, DecoderWeights]:
    return load_decoder(open_checkpoint(write_llama(directory / "model.gguf", types)), torch.float32)


@pytest.mark.parametrize(
    ("kind", "head", "comes_to"),
    [
        ("Q4_1", "Q8_0", "int4"),
        ("Q4_K", "Q6_K", "blocks"),
        ("Q4_1", "F16", "mixed"),
        ("Q5_0", "Q8_0", "blocks"),
        ("Q8_0", "Q8_0", "blocks"),
        ("Q8_0", "F16", "mixed"),
        ("Q5_K", "Q5_K", "blocks"),
        ("Q2_K", "Q6_K", "blocks"),
        ("IQ2_XS", "Q6_K", "blocks"),
        ("IQ1_M", "IQ1_M", "blocks"),
        ("BF16", "BF16", "bf16"),
    ],
)
def test_files_are_computed_in_what_holds_them(tmp_path: Path, kind: str, head: str, comes_to: str) -> None:
    library = load_library()
    if library is None:
        pytest.skip("no native path on this machine")
    backend = create_backend(*load(tmp_path, {"output.weight": head, "": kind}))
    if not library.blocks_pay:
        comes_to = "bf16"
    assert backend.name.startswith(f"native-{library.isa}-")
    if library.multiplies_bytes or comes_to == "bf16":
        assert backend.name == f"native-{library.isa}-{comes_to}"


def test_sizes_that_the_native_pass_has_not_are_told_at_the_start(tmp_path: Path) -> None:
    said = {
        head_dim: [each for each in LLM(write_tiny_model(tmp_path, head_dim=head_dim), "none").notices if "Py" in each]
        for head_dim in (8, 32)
    }
    assert said == {8: ["This model runs in PyTorch, since head_dim 8 is no multiple of 32 up to 512."], 32: []}


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: StoredTensor) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(StoredTensor, "expect", fail)
    monkeypatch.setattr(StoredTensor, "release", fail)


@pytest.mark.parametrize("precision", ["auto", "int4", "bf16", "fp32"])
def test_what_does_not_fit_is_refused_before_a_matrix_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """A byte less than is asked for is not enough, and what is asked for is what is kept, and little more."""
    if load_library() is None:
        pytest.skip("no native path on this machine")
    config, weights = load(tmp_path, {"ffn_down.weight": "Q6_K", "output.weight": "F16", "": "Q4_K"})
    kept = create_backend(config, weights, Precision(precision)).nbytes
    forbid_reading(monkeypatch)
    monkeypatch.setattr(memory, "free_bytes", lambda: kept)
    with pytest.raises(ConfigError, match=r"layers .*, output head .*, embedding .*, packing 67 MB") as refused:
        create_backend(config, weights, Precision(precision))
    assert f"takes {memory.readable(kept + (64 << 20))}" in str(refused.value)


def test_blocks_are_packed_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No matrix is in floats before it is packed, the embedding neither."""
    if load_library() is None:
        pytest.skip("no native path on this machine")
    config, weights = load(tmp_path, {"ffn_down.weight": "Q6_K", "output.weight": "F16", "": "Q4_K"})

    def fail(self: GgufFile, name: str) -> None:
        raise AssertionError(f"{name} was read as a whole")

    monkeypatch.setattr(GgufFile, "read", fail)
    for precision in Precision:
        create_backend(config, weights, precision)


def test_pytorch_is_asked_for_room_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, weights = load(tmp_path, {"": "Q8_0"})
    monkeypatch.setenv("HEADSTART_NATIVE", "0")
    forbid_reading(monkeypatch)
    monkeypatch.setattr(memory, "free_bytes", lambda: 4 * 10**6)
    with pytest.raises(ConfigError, match=r"in fp32 takes 6 MB, but 4 MB of memory is free; .* precision bf16"):
        create_backend(config, weights)
