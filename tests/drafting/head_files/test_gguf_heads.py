"""Heads as llama.cpp writes them are those that SafeAILab's and z-lab's files hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from head_cases import EAGLE3, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, MLP, TARGET, VOCAB, eagle3_tensors, write

from headstart.drafting.head_files.loading import is_whole_model, kind_in, load_head, trained_for
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.head import EagleHead
from headstart.errors import CheckpointError
from headstart_train.files.heads import save_head
from headstart_train.files.importing import import_head, stored_dtype
from headstart_train.first_steps.block import block_config

LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "hidden_norm": "enc.output_norm",
    "input_norm": "enc.output_norm",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
    "candidate_selector.hidden_projection": "selector_hidden",
    "attention_conv.kernel_projection": "attn_conv_proj",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}
BARE = {
    "self_attn.attention_sink_bias": "attn_sinks.weight",
    "candidate_selector.predecessor_codebook": "selector_prev.weight",
    "candidate_selector.successor_codebook": "selector_next.weight",
    "attention_conv.base_kernel": "attn_conv_base",
    "mlp_conv.base_kernel": "ffn_conv_base",
}


def in_pairs(rows: torch.Tensor) -> torch.Tensor:
    """Rows of heads whose halves turn together, as llama.cpp keeps them where pairs do."""
    heads = rows.view(-1, 2, HEAD_DIM // 2, rows.shape[1])
    return heads.transpose(1, 2).reshape(rows.shape)


def theirs(name: str) -> str:
    for bare, other in BARE.items():
        if name.endswith(bare):
            return f"blk.{name.split('.')[1]}.{other}" if name.startswith("layers.") else other
    stem, _, ending = name.rpartition(".")
    if name.startswith(("midlayer.", "layers.")):
        number = "0" if name.startswith("midlayer.") else name.split(".")[1]
        return f"blk.{number}.{(WHOLE | LAYER)[stem.split('.', 1 if name.startswith('midlayer.') else 2)[-1]]}.{ending}"
    return f"{WHOLE.get(stem, stem)}.{ending}" if stem else name


def write_gguf(
    path: Path,
    architecture: str,
    entries: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    pairs: bool = False,
    left_out: str = "",
    quantised: bool = False,
) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(sum(name.endswith("q_proj.weight") for name in tensors))
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_feed_forward_length(MLP)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_context_length(512)
    for key, value in entries.items():
        name = key if key.startswith("tokenizer.") else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        else:
            writer.add_uint32(name, value)
    for name, tensor in tensors.items():
        if name == "t2d" or name == left_out:
            continue
        if name == "d2t":
            ids = (tensor + torch.arange(len(tensor))).numpy().astype(np.int64)
            writer.add_tensor("d2t", ids, raw_dtype=gguf.GGMLQuantizationType.I64)
            continue
        turned = in_pairs(tensor) if pairs and name.endswith(("q_proj.weight", "k_proj.weight")) else tensor
        data = turned.detach().float().numpy()
        if quantised and data.ndim == 2 and data.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(theirs(name), gguf.quants.quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(theirs(name), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def eagle_gguf(path: Path, tensors: Mapping[str, torch.Tensor], **more: Any) -> Path:
    entries = {"extract_layers": [2, 3, 5], "target_hidden_size": HIDDEN, **more.pop("entries", {})}
    return write_gguf(path, "eagle3", entries, tensors, pairs=True, **more)


def alike(one: torch.nn.Module, other: torch.nn.Module, tolerance: float = 0.0) -> None:
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name].float(), tensor.float(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("quantised", [False, True])
def test_eagle3(quantised: bool, tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    head = load_head(write(tmp_path / "folder", EAGLE3, tensors), TARGET)
    path = eagle_gguf(tmp_path / "head.gguf", tensors, quantised=quantised)
    found = load_head(path, TARGET)
    assert isinstance(found, EagleHead)
    assert isinstance(head, EagleHead)
    assert replace(found.config, norm_eps=head.config.norm_eps) == head.config
    alike(head, found, 0.03 if quantised else 0.0)
    assert kind_in(path) == "eagle3"
    assert trained_for(path) is None
    assert not is_whole_model(str(path))
    alike(found, import_head(path, TARGET))
    assert stored_dtype(path) is torch.float32
    with pytest.raises(CheckpointError, match="names no layers"):
        import_head(path, TARGET, "outputs")


def test_eagle3_with_the_targets_output_and_scaled_frequencies(tmp_path: Path) -> None:
    tensors = eagle3_tensors(draft_vocab=VOCAB)
    for name in ("d2t", "t2d", "lm_head.weight"):
        del tensors[name]
    factors = torch.linspace(1, 8, HEAD_DIM // 2)
    path = eagle_gguf(
        tmp_path / "head.gguf",
        tensors | {"rope_freqs.weight": factors},
        entries={"norm_before_residual": True, "target_layers": [1, 4, 6]},
    )
    config = load_head(path, TARGET).config
    assert (config.borrows_output, config.norm_before_residual, config.taps) == (True, True, (1, 4, 6))
    assert config.rope.factors == pytest.approx(factors.tolist())


def test_eagle3_with_a_norm_of_all_features_and_a_window(tmp_path: Path) -> None:
    """As llama.cpp converts nvidia's heads of gpt-oss."""
    tensors = eagle3_tensors() | {"input_norm.weight": torch.rand(3 * HIDDEN)}
    entries = {"norm_before_fc": True, "norm_output": True, "attention.sliding_window": 64}
    head = load_head(eagle_gguf(tmp_path / "head.gguf", tensors, entries=entries), TARGET)
    assert isinstance(head, EagleHead)
    config = head.config
    assert (config.norm_before_fc, config.norm_output, config.fc_norm, config.windows) == (True, True, False, (64,))
    assert torch.equal(head.input_norm.weight, tensors["input_norm.weight"])
    save_head(head, tmp_path / "folder")
    again = load_head(tmp_path / "folder", TARGET)
    assert again.config == config
    alike(head, again)


BLOCKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dflash": ({}, {}),
    "windows": (
        {"windows": (64, 0)},
        {"attention.sliding_window": 64, "attention.sliding_window_pattern": [True, False]},
    ),
    "dspark": (
        {"root_speaks": True, "markov_rank": 3, "confidence": True, "confidence_reads_token": True},
        {"block_size": 6},
    ),
    "the root is silent": (
        {"markov_rank": 3, "confidence": True},
        {"sample_from_anchor": False},
    ),
    "sinks": ({"sinks": True, "root_speaks": True}, {"sample_from_anchor": True}),
    "an output of its own": ({"own_output": True, "draft_vocab_size": VOCAB}, {}),
    "dflash 2": (
        {"conv_taps": 2, "conv_group": 4, "selector_rank": 3, "selector_top": 5, "draft_vocab_size": VOCAB},
        {"selector_top_k": 5},
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str, tmp_path: Path) -> None:
    changes, entries = BLOCKS[name]
    head = BlockHead(replace(block_config(TARGET, 5, 2, 3, 8), **changes))
    if head.config.reduced:
        head.d2t.copy_(torch.arange(8))
    given = {
        "block_size": head.config.block_size,
        "target_layers": list(head.config.taps),
        "tokenizer.ggml.mask_token_id": 3,
    }
    path = write_gguf(tmp_path / "head.gguf", "dflash", given | entries, head.state_dict())
    found = load_head(path, TARGET)
    assert isinstance(found, BlockHead)
    eps = {"norm_eps": head.config.norm_eps, "rope": head.config.rope}
    assert replace(found.config, **eps) == head.config  # type: ignore[arg-type]
    alike(head, found)
    assert kind_in(path) == "dflash"
    save_head(found, tmp_path / "folder")
    alike(found, load_head(tmp_path / "folder", TARGET))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"left_out": "fc.weight"}, "fc.weight is missing"),
        ({"left_out": "midlayer.mlp.up_proj.weight"}, "up_proj.weight is missing"),
        ({"entries": {"extract_layers": [2, 3, 99]}}, "layers of this target"),
        ({"entries": {"target_hidden_size": 2 * HIDDEN}}, "made for a target of"),
        ({"entries": {"rope.dimension_count": 2}}, "rope.dimension_count is 2"),
    ],
)
def test_what_does_not_fit_is_one_sentence(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = eagle_gguf(tmp_path / "head.gguf", eagle3_tensors(), **more)
    with pytest.raises(CheckpointError, match=said) as raised:
        load_head(path, TARGET)
    assert "\n" not in str(raised.value)


def test_files_that_hold_no_head(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", "llama", {}, {"output_norm.weight": torch.ones(HIDDEN)})
    with pytest.raises(CheckpointError, match="no known format"):
        load_head(path, TARGET)
    assert kind_in(path) is None
    assert is_whole_model(str(path))
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError):
        load_head(tmp_path / "cut.gguf", TARGET)
