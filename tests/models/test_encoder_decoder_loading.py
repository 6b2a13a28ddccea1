"""Checkpoints of encoder-decoder models: every spelling of their tensors, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoder_decoders import make_model, reference_logits, save_model
from torch import Tensor

from headstart.backends.torch.encoder_decoder import EncoderDecoderBackend
from headstart.errors import CheckpointError
from headstart.models.checkpoint import open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.encoder_decoder_loading import load_encoder_decoder
from headstart.models.families import config_from_hf
from headstart.passes.batch import EncoderInput
from passes import BLOCK_SIZE, Rows, make_pass

SOURCE, TOKENS = list(range(40, 52)), [5, 6, 7]


def logits_of(directory: Path, source: list[int] = SOURCE) -> Tensor:
    backend = EncoderDecoderBackend(*load_encoder_decoder(open_checkpoint(directory), torch.float32))
    storage = backend.allocate_cache(8, BLOCK_SIZE)
    backend.encode(EncoderInput(tuple(source)), storage, [3, 5, 1])
    ints = torch.tensor([len(source)]).int().numpy(), torch.tensor([[3, 5, 1]]).int().numpy()
    batch = make_pass([Rows(TOKENS, 0, [0, 2])], memory_lengths=ints[0], memory_tables=ints[1])
    return backend.forward(batch, storage).logits


def rewrite(directory: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = directory / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


def bare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As files of the model without its head have them."""
    return {name.removeprefix("model."): each for name, each in tensors.items() if name != "final_logits_bias"}


def doubled(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With every copy of the table, and what older versions stored."""
    table = tensors["model.shared.weight"]
    copies = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    return tensors | {name: table.clone() for name in copies} | {"model.encoder.version": torch.tensor([3.0])}


def headless(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The table under the head's name alone."""
    return {("lm_head.weight" if name == "model.shared.weight" else name): each for name, each in tensors.items()}


@pytest.mark.parametrize("change", [bare, doubled, headless])
def test_names_that_files_have(change: Callable[[dict[str, Tensor]], dict[str, Tensor]], tmp_path: Path) -> None:
    model = make_model("bart")
    if change is bare:
        model.final_logits_bias.zero_()
    expected = reference_logits(model, SOURCE, TOKENS)
    rewrite(save_model(model, tmp_path), change)
    assert (logits_of(tmp_path) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("family", ["pegasus", "marian", "m2m-100"])
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_positions_that_a_file_holds_are_used_as_transformers_uses_them(family: str, half: str, tmp_path: Path) -> None:
    """A parameter is read; what transformers has as a buffer is computed, whatever an old file says."""
    name = f"model.{half}.embed_positions.weight"
    model = make_model(family)
    table = torch.randn(128, 36, generator=torch.Generator().manual_seed(5))
    stored = family != "m2m-100"
    if stored:
        getattr(model.model, half).embed_positions.weight.data = table
    rewrite(save_model(model, tmp_path), lambda tensors: tensors | {name if stored else f"{name}s": table})
    assert (logits_of(tmp_path) - reference_logits(model, SOURCE, TOKENS)).abs().max() <= 1e-4


def test_a_head_of_its_own_is_used(tmp_path: Path) -> None:
    model = make_model("t5-unscaled-gated")
    head = torch.randn(259, 36, generator=torch.Generator().manual_seed(5))
    rewrite(save_model(model, tmp_path), lambda tensors: tensors | {"lm_head.weight": head})
    model.lm_head.weight = torch.nn.Parameter(head)
    assert (logits_of(tmp_path) - reference_logits(model, SOURCE, TOKENS)).abs().max() <= 1e-4


APART = {"share_encoder_decoder_embeddings": False, "vocab_size": 300, "decoder_vocab_size": 259}


@pytest.mark.parametrize("tied", [True, False])
def test_each_half_may_have_a_vocabulary_of_its_own(tied: bool, tmp_path: Path) -> None:
    model = make_model("marian", **APART, tie_word_embeddings=tied)
    source = [*range(40, 50), 299]
    save_model(model, tmp_path)
    config, weights = load_encoder_decoder(open_checkpoint(tmp_path), torch.float32)
    assert config.encoder is not None
    assert (config.vocab_size, config.encoder.vocab_size, config.head.tied) == (259, 300, tied)
    assert weights.encoder.embedding is not None
    assert not torch.equal(weights.encoder.embedding[:259], weights.embedding)
    found = logits_of(tmp_path, source)
    assert (found - reference_logits(model, source, TOKENS)).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {n: x for n, x in t.items() if "fc1.bias" not in n}, "lacks model.decoder.layers.0.fc1.bias"),
        (lambda t: t | {"model.encoder.odd": torch.zeros(1)}, "has surplus model.encoder.odd"),
        (lambda t: t | {"model.shared.weight": torch.zeros(3, 36)}, "mis-shaped model.shared.weight"),
        (
            lambda t: t | {"model.decoder.layers.0.fc1.weight": torch.zeros(52, 36, dtype=torch.int8)},
            "instead of floating-point",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, tmp_path: Path
) -> None:
    rewrite(save_model(make_model("bart"), tmp_path), change)
    with pytest.raises(CheckpointError, match=message):
        load_encoder_decoder(open_checkpoint(tmp_path), torch.float32)


def read(family: str, **changes: Any) -> ModelConfig:
    return config_from_hf(make_model(family).config.to_dict() | changes)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("t5", {"feed_forward_proj": "swish-gelu"}, "feed_forward_proj is 'swish-gelu'"),
        ("t5", {"relative_attention_max_distance": 3}, "more than half of the buckets"),
        ("t5", {"d_kv": "8"}, "d_kv is '8'"),
        ("bart", {"activation_function": "mish"}, "activation_function is 'mish'"),
        ("bart", {"encoder_attention_heads": 5}, "encoder_attention_heads is 5"),
        ("bart", {"bad_words_ids": [[1], "x"]}, "a list of lists of token ids"),
        ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": "9"}, "decoder_vocab_size is '9'"),
        ("whisper", {"num_mel_bins": 0}, "num_mel_bins is 0"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(family, **changes)


def test_old_files_say_by_ties_whether_last_states_are_scaled() -> None:
    """``scale_decoder_outputs`` is transformers 5's name for it."""
    described = make_model("t5").config.to_dict()
    del described["scale_decoder_outputs"]
    assert config_from_hf(described | {"tie_word_embeddings": True}).folded.logit_divisor == 6.0
    assert config_from_hf(described | {"tie_word_embeddings": False}).folded.logit_divisor == 1.0
    assert read("mt5", tie_word_embeddings=True).folded.logit_divisor == 1.0


@pytest.mark.parametrize(
    ("family", "tokens", "start"),
    [
        ("t5", {"pad_token_id": 5}, 5),
        ("t5", {"decoder_start_token_id": None}, 0),
        ("mt5", {}, 0),
        ("umt5", {}, 0),
        ("bart", {}, 2),
        ("bart", {"decoder_start_token_id": None, "bos_token_id": 4}, 4),
        ("mbart", {"bos_token_id": 4}, 4),
        ("mbart", {}, None),
        ("pegasus", {}, 0),
        ("marian", {"vocab_size": 58101, "decoder_vocab_size": 58101}, 58100),
        ("marian", {}, None),
        ("m2m-100", {}, 2),
        ("whisper", {"vocab_size": 51865}, 50257),
    ],
)
def test_outputs_begin_as_in_transformers_where_files_do_not_say_it(
    family: str, tokens: dict[str, Any], start: int | None
) -> None:
    described = make_model(family).config.to_dict()
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        described.pop(name, None)
    config = config_from_hf(described | tokens)
    assert config.encoder is not None
    assert config.encoder.start_token_id == start


def test_generation_settings_override_the_configuration(tmp_path: Path) -> None:
    save_model(make_model("bart"), tmp_path)
    settings = {
        "decoder_start_token_id": 9,
        "forced_bos_token_id": 8,
        "bad_words_ids": [[3, 4]],
        "suppress_tokens": [5],
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    config, _ = load_encoder_decoder(open_checkpoint(tmp_path), torch.float32)
    assert config.encoder is not None
    assert (config.encoder.start_token_id, config.encoder.forced_first_token_id) == (9, 8)
    assert config.encoder.never == ((3, 4), (5,))
