"""What GGUF files of Gemma 3n and 4 may say, beside what the converter writes of tiny models, and their blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_gemma import write_gemma
from native_here import needs_native
from tiny_models import make_model, reference_logits

from headstart.backends.native.backend import NativeBackend
from headstart.backends.torch.backend import TorchBackend
from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.families import config_from_gguf, config_from_hf
from headstart.models.gguf_file import GgufFile
from headstart.models.stored_rows import rows_in_file
from headstart.models.weight_loading import config_of, load_decoder
from headstart.passes.backend import Backend
from passes import Rows, make_pass, random_tokens, usual_distance

TEXT = [3 + (7 * i * i + i) % 190 for i in range(40)]
WIDE = {
    "head_dim": 32,
    "hidden_size": 256,
    "intermediate_size": 256,
    "hidden_size_per_layer_input": 128,
    "moe_intermediate_size": 256,
}


def logits_of(backend: Backend, tokens: Sequence[int] = TEXT) -> torch.Tensor:
    batch = make_pass([Rows(tokens, 0, range(2))])
    return backend.forward(batch, backend.allocate_cache(2, 32)).logits


def wide_model(name: str) -> Any:
    if name == "gemma3n":
        return make_model("gemma3n_text", **WIDE | {"laurel_rank": 64, "intermediate_size": [256] * 6})
    family = "gemma4_text-experts" if name == "experts" else "gemma4_text"
    return make_model(family, **WIDE | ({"hidden_size_per_layer_input": 0} if name == "experts" else {}))


def in_blocks(name: str) -> dict[str, str]:
    """Types as files named Q4_K_M have them, of some matrices."""
    layer = "model.layers.0."
    found = {"model.embed_tokens.weight": "Q6_K", f"{layer}self_attn.q_proj.weight": "Q4_K"}
    found |= {f"{layer}self_attn.v_proj.weight": "Q6_K", f"{layer}mlp.down_proj.weight": "Q5_K"}
    if name == "experts":
        return found | {f"{layer}experts.gate_up_proj": "Q4_K", f"{layer}experts.down_proj": "Q6_K"}
    return (
        found
        | {"model.per_layer_model_projection.weight": "Q4_K"}
        | ({"model.embed_tokens_per_layer.weight": "Q4_K"} if name == "gemma4" else {})
    )


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "experts"])
def test_blocks_give_what_their_values_give(name: str, tmp_path: Path) -> None:
    model = wide_model(name)
    path = write_gemma(model, tmp_path / "tiny.gguf", in_blocks(name))
    logits = logits_of(TorchBackend(*load_decoder(open_checkpoint(path), torch.float32)))
    assert (logits - reference_logits(model, TEXT)).abs().max().item() <= 1e-4


def test_rows_of_the_table_stay_in_the_file(tmp_path: Path) -> None:
    """In folders, too; and they are the rows of the whole table."""
    model = wide_model("gemma4")
    model.save_pretrained(tmp_path)
    quantised = write_gemma(model, tmp_path / "tiny.gguf", in_blocks("gemma4"))
    ids = torch.tensor([7, 0, 258, 7])
    for place in (quantised, tmp_path):
        config, weights = load_decoder(open_checkpoint(place), torch.float32)
        assert weights.layer_inputs is not None
        rows = rows_in_file(weights.layer_inputs.whole)
        assert rows is not None
        assert torch.equal(rows(ids), weights.layer_inputs.table[ids])
        layer_inputs = TorchBackend(config, weights).decoder.layer_inputs
        assert layer_inputs is not None
        assert layer_inputs.nbytes == layer_inputs.projection.nbytes


@needs_native
@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "experts"])
def test_the_native_pass_keeps_their_blocks(name: str, tmp_path: Path) -> None:
    """And reads inputs of layers from the file's own."""
    path = write_gemma(wide_model(name), tmp_path / "tiny.gguf", in_blocks(name))
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    in_full = NativeBackend(config, weights, "fp32", 2)
    assert (logits_of(in_full) - logits_of(TorchBackend(config, weights))).abs().max().item() <= 1e-4
    kept = NativeBackend(config, weights, "nearest", 2).kept
    assert all(kind in kept for kind in ("Q4_K", "Q5_K", "Q6_K"))


@needs_native
@pytest.mark.parametrize("name", ["gemma3n", "gemma4"])  # of experts, rounded rows call others
def test_files_of_blocks_are_nearer_than_in_bf16(name: str, tmp_path: Path) -> None:
    """Where all layers are in blocks: what else is rounded is rounded alike."""
    model = wide_model(name)
    matrices = [
        key
        for key, tensor in model.state_dict().items()
        if ".layers." in key and tensor.dim() == 2 and tensor.shape[1] % 256 == 0
    ]
    kinds = dict(zip(matrices, cycle(("Q4_K", "Q5_K", "Q6_K"))))
    path = write_gemma(model, tmp_path / "tiny.gguf", in_blocks(name) | kinds)
    config, weights = load_decoder(open_checkpoint(path), torch.float32)
    exact, kept, in_bf16 = (
        torch.cat([logits_of(backend, random_tokens(60, seed)) for seed in range(5)])
        for backend in (
            TorchBackend(config, weights),
            *(NativeBackend(config, weights, precision, 2) for precision in ("nearest", "bf16")),
        )
    )
    off, bf16_off = usual_distance(kept, exact), usual_distance(in_bf16, exact)
    assert off < bf16_off < 0.1 * exact.norm(dim=1).median()  # scores of normed heads are steep


@pytest.mark.parametrize("family", ["gemma4_text", "gemma4_text-experts", "gemma3n_text"])
def test_a_file_describes_what_the_folder_does(family: str, tmp_path: Path) -> None:
    changes = {"laurel_rank": 64} if family == "gemma3n_text" else {}
    model = make_model(family, **changes)
    model.save_pretrained(tmp_path)
    described = config_from_hf(json.loads((tmp_path / "config.json").read_text()))
    from_file = config_of(open_checkpoint(write_gemma(model, tmp_path / "tiny.gguf")))
    for index, (ours, theirs) in enumerate(zip(from_file.layers, described.layers, strict=True)):
        assert (ours.window, ours.reads, ours.sparsity) == (theirs.window, theirs.reads, theirs.sparsity), index
        assert from_file.kv_heads_of(ours) == described.kv_heads_of(theirs)
        assert from_file.head_dim_of(ours) == described.head_dim_of(theirs)
        assert from_file.ropes[ours.rope or 0] == described.ropes[theirs.rope or 0]


def metadata_of(family: str, path: Path, **changes: Any) -> dict[str, Any]:
    return dict(GgufFile(write_gemma(make_model(family, **changes), path)).metadata)


@pytest.mark.parametrize(
    ("family", "key", "value", "said"),
    [
        ("gemma4", "attention.sliding_window_pattern", [True], "6 entries, each true or false"),
        ("gemma4", "attention.shared_kv_layers", 6, "shared_kv_layers is 6"),
        ("gemma4", "attention.head_count_kv", [2, 2], "a number or a list of 6"),
        ("gemma4", "feed_forward_length", [72, 72, 72, 72, 0, 72], "feed_forward_length is 0"),
        ("gemma4", "attention.value_length_swa", 8, "value_length_swa is 8"),
        ("gemma4", "rope.dimension_count", 8, "rope.dimension_count is 8"),
        ("gemma4", "attention.key_length_swa", None, "no entry 'gemma4.attention.key_length_swa'"),
        ("gemma3n", "altup.active_idx", 1, "altup.active_idx is 1"),
        ("gemma3n", "activation_sparsity_scale", [1.0], "6 numbers"),
        ("gemma3n", "activation_sparsity_scale", [float("nan")] * 6, "below infinity"),
        ("gemma3n", "feed_forward_length", [72], "a number or a list of 6"),
    ],
)
def test_what_is_not_described_is_refused(family: str, key: str, value: Any, said: str, tmp_path: Path) -> None:
    changes = {"laurel_rank": 64} if family == "gemma3n" else {}
    metadata = metadata_of(f"{family}_text", tmp_path / "tiny.gguf", **changes)
    assert config_from_gguf(metadata).family == family
    with pytest.raises(CheckpointError, match=said):
        config_from_gguf(metadata | {f"{family}.{key}": value})


def test_what_entries_leave_out_is_as_in_released_models(tmp_path: Path) -> None:
    """By the numbers of Gemma 3n E4B."""
    metadata = metadata_of("gemma3n_text", tmp_path / "tiny.gguf", laurel_rank=64)
    for key in ("activation_sparsity_scale", "attention.sliding_window_pattern", "attention.shared_kv_layers"):
        del metadata[f"gemma3n.{key}"]
    config = config_from_gguf(metadata | {"gemma3n.block_count": 35, "gemma3n.feed_forward_length": 16_384})
    assert [layer.sparsity for layer in config.layers] == [0.95] * 10 + [0.0] * 25
    assert [index for index, layer in enumerate(config.layers) if layer.window is None] == [4, 9, 14, 19, 24, 29, 34]
    assert [layer.reads for layer in config.layers[18:26]] == [None, None, 18, 18, 18, 18, 19, 18]


def test_a_file_without_its_table_of_factors_is_refused(tmp_path: Path) -> None:
    path = write_gemma(make_model("gemma4_text"), tmp_path / "tiny.gguf")
    # Spoil its name in place: the header keeps its length.
    path.write_bytes(path.read_bytes().replace(b"rope_freqs.weight", b"rope_turns.weight"))
    with pytest.raises(CheckpointError, match=r"lacks rope_freqs\.weight \[16\]"):
        load_decoder(open_checkpoint(path), torch.float32)


def test_a_file_of_another_rank_is_refused(tmp_path: Path) -> None:
    path = write_gemma(make_model("gemma3n_text"), tmp_path / "tiny.gguf")
    with pytest.raises(CheckpointError, match=r"laurel_l\.weight \[10, 64\] instead of \[64, 64\]"):
        load_decoder(open_checkpoint(path), torch.float32)


def test_experts_that_are_not_joined_are_refused(tmp_path: Path) -> None:
    path = write_gemma(make_model("gemma4_text-experts"), tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes().replace(b"ffn_gate_up_exps", b"ffn_gate_xx_exps"))
    with pytest.raises(CheckpointError, match=r"lacks blk\.0\.ffn_gate_up_exps\.weight"):
        load_decoder(open_checkpoint(path), torch.float32)


def test_tokens_beyond_the_inputs_of_layers_read_what_the_file_has(tmp_path: Path) -> None:
    """Zeros: the converter fills the table up, where the folder's model reads its first row."""
    path = write_gemma(make_model("gemma3n_text", laurel_rank=64), tmp_path / "tiny.gguf")
    _, weights = load_decoder(open_checkpoint(path), torch.float32)
    assert weights.layer_inputs is not None
    assert not np.any(weights.layer_inputs.table[200:].numpy())
