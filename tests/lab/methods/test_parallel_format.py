"""Hand-made Medusa files, and Headstart's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from head_cases import HIDDEN, TARGET, VOCAB, write

from headstart.backends.torch.head_kit import torch_kit
from headstart.drafting.head_files.loading import load_head
from headstart.drafting.heads.tables import TargetTables
from headstart.errors import CheckpointError
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads, ParallelKind, token_rows
from headstart_lab.methods.medusa.running import ParallelPass
from headstart_train.files.heads import export_head, save_head

TABLES = TargetTables(torch.randn(VOCAB, HIDDEN).bfloat16().float(), torch.randn(VOCAB, HIDDEN))
MEDUSA = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "org/target"}


def medusa_tensors(slots: int = 5, layers: int = 1) -> dict[str, torch.Tensor]:
    tensors = {}
    for slot in range(slots):
        for layer in range(layers):
            tensors[f"{slot}.{layer}.linear.weight"] = torch.randn(HIDDEN, HIDDEN)
            tensors[f"{slot}.{layer}.linear.bias"] = torch.randn(HIDDEN)
        tensors[f"{slot}.{layers}.weight"] = torch.randn(VOCAB, HIDDEN)
    return tensors


@pytest.mark.parametrize("layers", [1, 2])
def test_medusa(tmp_path: Path, layers: int) -> None:
    """The file's heads count, not the description's."""
    tensors = medusa_tensors(layers=layers)
    heads = load_head(write(tmp_path, MEDUSA, tensors, "medusa_lm_head.pt"), TARGET)
    assert isinstance(heads, ParallelHeads)
    assert (heads.config.slots, heads.config.num_layers, heads.config.own_heads) == (5, layers, True)
    state = torch.randn(HIDDEN)
    expected = state
    for layer in range(layers):
        expected = expected + torch.nn.functional.silu(
            tensors[f"3.{layer}.linear.weight"] @ expected + tensors[f"3.{layer}.linear.bias"]
        )
    with torch.no_grad():
        logits = heads.logits(heads(state), TABLES.head)
    torch.testing.assert_close(logits[3], tensors[f"3.{layers}.weight"] @ expected, rtol=1e-4, atol=1e-4)


def test_every_wrong_tensor_is_named(tmp_path: Path) -> None:
    tensors = medusa_tensors(2) | {"1.0.linear.weight": torch.zeros(2, 2), "surplus": torch.zeros(1)}
    del tensors["0.0.linear.bias"]
    with pytest.raises(CheckpointError) as caught:
        load_head(write(tmp_path, MEDUSA, tensors, "medusa_lm_head.pt"), TARGET)
    for fault in ("blocks.0.0.linear.bias is missing", "surplus is not part", "blocks.1.0.linear.weight is [2, 2]"):
        assert fault in str(caught.value)


def test_heads_of_another_target(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in medusa_tensors(1).items()}
    tensors["0.1.weight"] = torch.zeros(VOCAB + 1, HIDDEN)
    with pytest.raises(CheckpointError, match=r"made for a target .* name the model that it was trained for"):
        load_head(write(tmp_path, MEDUSA, tensors, "medusa_lm_head.pt"), TARGET)
    with pytest.raises(CheckpointError, match="no Medusa head"):
        load_head(write(tmp_path, MEDUSA, {"x": torch.zeros(1)}, "medusa_lm_head.pt"), TARGET)


@pytest.mark.parametrize(("kind", "more"), [("medusa", False), ("medusa", True), ("blockwise", False)])
def test_headstarts_own_files(tmp_path: Path, kind: ParallelKind, more: bool) -> None:
    config = ParallelConfig(kind, HIDDEN, VOCAB, 8, slots=3, num_layers=2, output_maps=more, reads_token=more)
    heads = ParallelHeads(config)
    heads.d2t.copy_(torch.arange(8))
    save_head(heads, tmp_path, {"steps": 3})
    again = load_head(tmp_path, TARGET)
    assert isinstance(again, ParallelHeads)
    assert again.config == heads.config
    assert again.target_ids.tolist() == list(range(0, 16, 2))


@pytest.mark.parametrize("output_maps", [False, True])
def test_exported_medusa_heads_say_the_same(tmp_path: Path, output_maps: bool) -> None:
    """Heads on the target's own output are written with one each, as Medusa's readers want them."""
    heads = ParallelHeads(ParallelConfig("medusa", HIDDEN, VOCAB, VOCAB, slots=2, output_maps=output_maps))
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    export_head(heads, "medusa", tmp_path, TABLES, "org/target")
    stored = torch.load(tmp_path / "medusa_lm_head.pt", weights_only=True)
    assert set(stored) == set(medusa_tensors(2))
    assert json.loads((tmp_path / "config.json").read_text())["medusa_num_heads"] == 2
    again = load_head(tmp_path, TARGET)
    assert isinstance(again, ParallelHeads)
    states = torch.randn(3, HIDDEN)
    tokens = torch.tensor([0, 5, VOCAB - 1])
    passes = [ParallelPass(each, TABLES, torch_kit(torch.float32)) for each in (heads, again)]
    said = [each.logits(states, tokens) for each in passes]
    torch.testing.assert_close(said[0], said[1], rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        whole = heads.logits(heads(states), TABLES.head)
    torch.testing.assert_close(said[0], whole, rtol=1e-4, atol=1e-3)


def test_heads_that_read_tokens_are_exported_without_that(tmp_path: Path) -> None:
    """The pass does as the module does; the export says what the module says where no token is shown."""
    heads = ParallelHeads(ParallelConfig("medusa", HIDDEN, VOCAB, VOCAB, slots=2, output_maps=True, reads_token=True))
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter)
    states, tokens = torch.randn(3, HIDDEN), torch.tensor([0, 5, VOCAB - 1])
    with torch.no_grad():
        seen = heads.logits(heads(states, token_rows(TABLES.embedding, tokens)), TABLES.head)
        unseen = heads.logits(heads(states), TABLES.head)
    assert not torch.allclose(seen, unseen)
    said = ParallelPass(heads, TABLES, torch_kit(torch.float32)).logits(states, tokens)
    torch.testing.assert_close(said, seen, rtol=1e-4, atol=1e-2)
    export_head(heads, "medusa", tmp_path, TABLES, "org/target")
    again = load_head(tmp_path, TARGET)
    assert isinstance(again, ParallelHeads)
    with torch.no_grad():
        exported = again.logits(again(states), TABLES.head)
    torch.testing.assert_close(exported, unseen, rtol=1e-4, atol=1e-2)


def test_what_medusas_format_cannot_hold(tmp_path: Path) -> None:
    reduced = ParallelHeads(ParallelConfig("medusa", HIDDEN, VOCAB, 8, slots=2, own_heads=True))
    blockwise = ParallelHeads(ParallelConfig("blockwise", HIDDEN, VOCAB, VOCAB, slots=2))
    for heads in (reduced, blockwise):
        with pytest.raises(CheckpointError, match=r"[Mm]edusa"):
            export_head(heads, "medusa", tmp_path, TABLES, "x")


@pytest.mark.parametrize(("kind", "own_heads"), [("blockwise", False), ("medusa", True)])
def test_parts_are_refused_where_nothing_uses_them(tmp_path: Path, kind: ParallelKind, own_heads: bool) -> None:
    save_head(ParallelHeads(ParallelConfig(kind, HIDDEN, VOCAB, VOCAB, slots=2, own_heads=own_heads)), tmp_path)
    description = json.loads((tmp_path / "config.json").read_text())
    for part in ("output_maps", "reads_token") if kind == "blockwise" else ("output_maps",):
        (tmp_path / "config.json").write_text(json.dumps(description | {part: True}))
        with pytest.raises(CheckpointError, match=part):
            load_head(tmp_path, TARGET)
