"""Whatever is wrong with a head's files, whoever names it reads one sentence; every kind of head, every entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from damaged_heads import changed, check, check_entries, check_tensors, entries
from head_cases import EAGLE1, EAGLE3, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, MLP, TARGET, VOCAB, write
from head_cases import eagle1_tensors as eagle1
from head_cases import eagle3_tensors as eagle3
from test_gguf_heads import theirs
from torch import Tensor

from headstart.drafting.head_files.loading import load_head
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.errors import CheckpointError
from headstart_lab.methods.medusa.head import ParallelConfig, ParallelHeads
from headstart_train.files.heads import save_head
from headstart_train.first_steps.block import block_config

Files = tuple[dict[str, Any], dict[str, Tensor]]
GENERAL = {
    "embedding_length": HIDDEN,
    "block_count": 1,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "feed_forward_length": MLP,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "context_length": 512,
}


def gguf(architecture: str, tensors: Mapping[str, Tensor], **entries: Any) -> Files:
    named = {f"{architecture}.{key}": value for key, value in {**GENERAL, **entries}.items()}
    listed = {"general.architecture": architecture, "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB)]}
    return listed | named, {theirs(name): tensor for name, tensor in tensors.items() if name != "t2d"}


def speculators(kind: str, tensors: dict[str, Tensor], **more: Any) -> Files:
    layer = {name: value for name, value in EAGLE3.items() if name not in ("architectures", "draft_vocab_size")}
    described = {"speculators_model_type": kind, "draft_vocab_size": 8, "transformer_layer_config": layer, **more}
    return described, {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}


def block_files(nested: dict[str, Any], **changes: Any) -> Files:
    head = BlockHead(replace(block_config(TARGET, 5, 1, 3), **changes))
    described = {name: value for name, value in EAGLE1.items() if name != "architectures"} | {"head_dim": HEAD_DIM}
    taps = {"mask_token_id": 3, "target_layer_ids": [tap - 1 for tap in head.config.taps]}
    return described | {"block_size": 6, "dflash_config": taps | nested}, dict(head.state_dict())


def parallel_files() -> Files:
    head = ParallelHeads(ParallelConfig("medusa", HIDDEN, VOCAB, VOCAB, slots=2))
    described = {"headstart_head": "medusa", "hidden_size": HIDDEN, "vocab_size": VOCAB, "slots": 2}
    return described | {"draft_vocab_size": VOCAB, "num_layers": 1, "reads_token": False}, dict(head.state_dict())


def second() -> Files:
    nested = {"conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 3, "selector_top_k": 5}
    changes = {"conv_taps": 2, "conv_group": 4, "selector_rank": 3, "selector_top": 5}
    return block_files(nested, **changes)


def gguf_block() -> Files:
    head = BlockHead(block_config(TARGET, 5, 1, 3, 8))
    entries = {"block_size": 6, "target_layers": list(head.config.taps)}
    described, tensors = gguf("dflash", head.state_dict() | {"d2t": torch.arange(8)}, **entries)
    return described | {"tokenizer.ggml.mask_token_id": 3}, tensors


NORMED = {f"fc_norm.{i}.weight": torch.ones(HIDDEN) for i in range(3)}
MASK = {"mask_hidden": torch.ones(3 * HIDDEN)}
KINDS: dict[str, Callable[[], Files]] = {
    "eagle": lambda: (EAGLE1, eagle1()),
    "eagle3.1": lambda: (EAGLE3 | {"fc_norm": True, "norm_output": True}, eagle3() | NORMED),
    "eagle3 of speculators": lambda: speculators("eagle3", eagle3(), norm_before_residual=True),
    "p-eagle": lambda: (EAGLE3 | {"ptd_token_id": 3, "para_depths": 4}, eagle3() | MASK),
    "p-eagle of speculators": lambda: speculators("peagle", eagle3() | MASK, mask_token_id=3),
    "dflash": lambda: block_files({"sample_from_anchor": False}),
    "dspark": lambda: block_files({"markov_rank": 3}, markov_rank=3),
    "dflash 2": second,
    "medusa": parallel_files,
    "eagle3 in GGUF": lambda: gguf("eagle3", eagle3(), extract_layers=[2, 3, 5], target_hidden_size=HIDDEN),
    "dflash in GGUF": gguf_block,
}


@pytest.mark.parametrize("kind", KINDS)
def test_entries_that_are_missing_or_senseless(kind: str) -> None:
    check_entries(*KINDS[kind](), TARGET)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_that_are_missing_or_of_another_shape_or_no_numbers(kind: str) -> None:
    check_tensors(*KINDS[kind](), TARGET)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "GGUF" not in kind])
def test_files_that_are_cut_off(kind: str, tmp_path: Path) -> None:
    description, tensors = KINDS[kind]()
    assert load_head(write(tmp_path, description, dict(tensors)), TARGET) is not None
    file = tmp_path / "model.safetensors"
    for size in (0, 5, file.stat().st_size - 9):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(CheckpointError) as raised:
            load_head(tmp_path, TARGET)
        assert "\n" not in str(raised.value)


def test_heads_of_other_targets() -> None:
    """Wider states, and another vocabulary."""
    for kind, files in KINDS.items():
        description, tensors = files()
        for name, value in (("hidden_size", 32), ("vocab_size", VOCAB - 3), ("embedding_length", 32)):
            for path in entries(description):
                if path[-1].removeprefix("eagle3.").removeprefix("dflash.") == name:
                    error = check(changed(description, path, value), tensors, TARGET, (kind, path))
                    assert error is not None, (kind, path)


def test_what_is_saved_is_no_worse(tmp_path: Path) -> None:
    head = ParallelHeads(ParallelConfig("medusa", HIDDEN, VOCAB, VOCAB, slots=2))
    with torch.no_grad():
        next(head.parameters()).fill_(torch.nan)
    save_head(head, tmp_path)
    with pytest.raises(CheckpointError, match="infinities or NaN in"):
        load_head(tmp_path, TARGET)
