"""T5 in GGUF files: what transformers computes of the checkpoint that the file was made of, or of its own values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from tiny_encoder_decoders import END, START, make_model, reference_logits, reference_tokens
from torch import Tensor
from transformers import PreTrainedModel

from headstart import LLM, SamplingParams
from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.errors import CheckpointError, UnsupportedModelError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from headstart.passes.batch import EncoderInput
from passes import BLOCK_SIZE, Rows, make_pass

SIZES = {"d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 96, "relative_attention_max_distance": 128}
SOURCE, TOKENS = list(range(40, 52)), [START, 6, 7]


def made(family: str, **changes: Any) -> PreTrainedModel:
    """With a head of its own but for the first T5, whose last states are scaled."""
    model = make_model(family, **SIZES, **changes)
    if family != "t5":
        model.lm_head.weight = torch.nn.Parameter(torch.randn(259, 64, generator=torch.Generator().manual_seed(5)))
    return model


def write(model: PreTrainedModel, path: Path, kind: str = "F32", leave_out: tuple[str, ...] = ()) -> Path:
    """By the rules of llama.cpp's converter (conversion/t5.py there)."""
    config = model.config
    writer = gguf.GGUFWriter(path, "t5")
    writer.add_context_length(512)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    writer.add_decoder_block_count(config.num_decoder_layers)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    if config.decoder_start_token_id is not None:
        writer.add_decoder_start_token_id(config.decoder_start_token_id)
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    characters = [chr(33 + place) for place in range(90)]
    tokens = [*characters, *(f"[PAD{place}]" for place in range(164)), "\u2581", "<unk>", "<pad>", "<s>", "</s>"]
    writer.add_token_list(tokens)
    writer.add_token_scores([-1.0] * 90 + [-10000.0] * 164 + [-1.0, 0.0, 0.0, 0.0, 0.0])
    writer.add_token_types([1] * 90 + [5] * 164 + [1, 2, 3, 3, 3])
    writer.add_unk_token_id(255)
    writer.add_eos_token_id(END)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, max(config.num_layers, config.num_decoder_layers))
    for name, tensor in model.state_dict().items():
        own_head = name == "lm_head.weight" and model.lm_head.weight is not model.shared.weight
        if name.endswith("embed_tokens.weight") or (name == "lm_head.weight" and not own_head):
            continue
        target = "output.weight" if own_head else names.get_name(name, try_suffixes=(".weight",))
        assert target is not None, name
        if target in leave_out:
            continue
        values = tensor.contiguous().numpy()
        wide = tensor.ndim == 2 and "rel_b" not in target
        chosen = GGMLQuantizationType[kind] if wide else GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quants.quantize(values, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits_of(path: Path) -> Tensor:
    backend = EncoderDecoderBackend(*load_encoder_decoder(open_checkpoint(path), torch.float32))
    storage = backend.allocate_cache(8, BLOCK_SIZE)
    backend.encode(EncoderInput(tuple(SOURCE)), storage, [3, 5, 1])
    ints = torch.tensor([len(SOURCE)]).int().numpy(), torch.tensor([[3, 5, 1]]).int().numpy()
    batch = make_pass([Rows(TOKENS, 0, [0, 1, 2])], memory_lengths=ints[0], memory_tables=ints[1])
    return backend.forward(batch, storage).logits


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("t5", {}),
        ("t5-unscaled-gated", {}),
        ("t5", {"num_layers": 3, "num_decoder_layers": 1}),
        ("umt5", {"feed_forward_proj": "gated-gelu"}),
        ("mt5", {"feed_forward_proj": "gated-gelu"}),
    ],
)
def test_logits_are_those_of_transformers(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = made(family, **changes)
    expected = reference_logits(model, SOURCE, TOKENS)
    if family == "umt5":
        # transformers 5 scales the last states of every UMT5; version 4 and llama.cpp of none that has its own head.
        expected = expected * 64**0.5
    found = logits_of(write(model, tmp_path / "model.gguf"))
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_blocks_are_the_values_that_they_stand_for(kind: str, tmp_path: Path) -> None:
    model = made("t5")
    path = write(model, tmp_path / "model.gguf", kind)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, 3)
    file = open_checkpoint(path)
    values = {
        name: file.read("token_embd.weight" if "embed_tokens" in name or "lm_head" in name else found).float()
        for name in model.state_dict()
        for found in [names.get_name(name, try_suffixes=(".weight",))]
    }
    before = reference_logits(model, SOURCE, TOKENS)
    model.load_state_dict(values)
    expected = reference_logits(model, SOURCE, TOKENS)
    assert (expected - before).abs().max() > 1e-3
    assert (logits_of(path) - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_a_file_decodes_from_text_to_text(tmp_path: Path) -> None:
    model = made("t5")
    path = write(model, tmp_path / "model.gguf")
    for drafter in ("none", "copy"):
        llm = LLM(path, drafter)
        (output,) = llm.generate("A house.", SamplingParams(temperature=0, max_tokens=16))
        read = output.encoder_prompt_token_ids
        assert read == [254, *(ord(letter) - 33 for letter in "A"), 254, *(ord(each) - 33 for each in "house."), END]
        assert output.prompt_token_ids == [START]
        assert output.token_ids == reference_tokens(model, read, 16)


@pytest.mark.parametrize("padding", [None, 7])
def test_outputs_begin_with_the_padding_token_where_nothing_else_is_named(padding: int | None, tmp_path: Path) -> None:
    """It is token 0 unless the file says otherwise."""
    model = made("t5")
    model.config.decoder_start_token_id = None
    file = open_checkpoint(write(model, tmp_path / "model.gguf"))
    named = {} if padding is None else {"tokenizer.ggml.padding_token_id": padding}
    config, _ = load_encoder_decoder(replace(file, metadata={**file.metadata, **named}), torch.float32)
    assert config.encoder is not None
    assert config.encoder.start_token_id == (padding or 0)


def test_an_encoder_alone_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "encoder.gguf", "t5encoder")
    writer.add_embedding_length(64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="an encoder without a decoder, which writes nothing"):
        load_encoder_decoder(open_checkpoint(tmp_path / "encoder.gguf"), torch.float32)


def test_a_file_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    path = write(made("t5"), tmp_path / "model.gguf", leave_out=("dec.blk.1.cross_attn_k.weight",))
    with pytest.raises(CheckpointError, match=r"lacks dec\.blk\.1\.cross_attn_k\.weight"):
        load_encoder_decoder(open_checkpoint(path), torch.float32)
