"""The tokenizer: what transformers encodes, and bytes that join to text."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutate_text
from safetensors.torch import save_file
from small_tokenizers import WORDS, byte_level, byte_level_metadata, sentencepiece, tokenizer_of
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from headstart.errors import CheckpointError, RequestError
from headstart.models.aliases import ALIASES, DEFAULT_MODEL
from headstart.models.checkpoint import open_checkpoint
from headstart.text.gguf_tokenizer import read_gguf_tokenizer
from headstart.text.token_bytes import TokenBytes
from headstart.text.tokenizer import Tokenizer

NASTY = [
    "",
    " ",
    "Hello world! 123",
    "Café déjà vu.",
    "e\u0301 is not é",
    "  two  spaces,   three\t\ttabs \r\n\r\n ends ",
    "def f(x):\n    return {'a': [1, 22, 333]}  # ünïcode\n\n\n",
    "日本語のテキスト、中文测试。한국어",
    "👩‍👩‍👧‍👦 🏳️‍🌈 ✨🎉 flags 🇸🇪🇯🇵",
    "ﷺ ½ ² ٣ Ⅷ ﬁ ǅ",
    "\x00\x07\u200b\u00a0\ufeff\u2028",
    "don't WE'LL i'M they're O'Neil",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start|",
    "a" * 3000,
    " " * 3000,
    "1234567890" * 20,
]


@pytest.fixture(scope="module")
def default_model() -> Tokenizer:
    if ALIASES[DEFAULT_MODEL].installed_file() is None:
        pytest.skip(f"the package {ALIASES[DEFAULT_MODEL].package!r} with the default model is not installed")
    return Tokenizer.from_checkpoint(open_checkpoint(DEFAULT_MODEL))


@pytest.mark.thorough
@pytest.mark.model
def test_the_default_model_is_tokenized_as_transformers_does(default_model: Tokenizer) -> None:
    from transformers import AutoTokenizer

    path = open_checkpoint(DEFAULT_MODEL).path
    reference = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # transformers' GGUF reader does not know the pre-tokenizer "smollm", which cuts between digits as the model's own
    # tokenizer.json does; without that, its merges of spaces differ beside digits.
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    corpus = [*NASTY, ("".join(NASTY) * 10)[:20_000]]
    for text in corpus:
        ids = default_model.encode(text)
        assert ids == reference.encode(text)
        assert default_model.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert default_model.decode(ids, skip_special_tokens=False) == reference.decode(ids)


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
    ],
)
def test_the_default_model_gives_known_ids(default_model: Tokenizer, text: str, ids: list[int]) -> None:
    """Ids that the model's published tokenizer.json gives."""
    assert default_model.encode(text) == ids


@pytest.mark.model
def test_the_default_model_knows_its_special_tokens(default_model: Tokenizer) -> None:
    assert default_model.vocab_size == 49152
    assert default_model.special_tokens["bos_token"] == "<|im_start|>"
    assert (default_model.bos_token_id, default_model.eos_token_ids) == (1, (2, 0))  # as llama.cpp has it
    assert default_model.encode("<|im_end|>") == [2]
    assert 2 not in default_model.encode("<|im_end|>", parse_special=False)


# decoding

BYTE_LEVEL = byte_level()
SENTENCEPIECE = sentencepiece()
BYTE_LEVEL_BACKEND = read_gguf_tokenizer(byte_level_metadata(WORDS), source="test").backend
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=30)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 3), max_size=30), st.booleans())
def test_byte_level_decoding_is_the_librarys_for_any_tokens(ids: list[int], skip: bool) -> None:
    assert BYTE_LEVEL.decode(ids, skip) == BYTE_LEVEL_BACKEND.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte-level", "sentencepiece"])
def test_a_text_is_its_tokens_bytes_joined(tokenizer: Tokenizer) -> None:
    @settings(max_examples=100, deadline=None)
    @given(TEXT)
    def joined(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        whole = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
        assert tokenizer.without_leading_space(whole) == text.encode()

    joined()


def test_ids_without_a_token_are_empty() -> None:
    assert BYTE_LEVEL.decode([-1, BYTE_LEVEL.vocab_size, 1 << 40]) == ""


def test_part_of_a_character_is_shown_as_such() -> None:
    first, *_ = byte_level("").encode("é")
    assert BYTE_LEVEL.token_text(first) == "\ufffd"


@pytest.mark.parametrize(
    ("decoder", "tokens"),
    [
        (None, ["a", "b", "c"]),
        (decoders.ByteLevel(), ["Ġa", "b", "a b"]),
        (decoders.Metaspace(), ["▁a", "▁b", "c"]),
        (decoders.Metaspace(prepend_scheme="never"), ["▁a", "▁b", "c"]),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]), ["<0xE2>", "<0x98>", "<0x83>", "<0xZZ>", "a"]),
        (
            decoders.Sequence(
                [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
            ),
            ["▁a", "▁", "▁b", "<0x0A>"],
        ),
    ],
    ids=["none", "byte-level", "metaspace", "metaspace-never", "byte-fallback", "llama"],
)
def test_the_decoders_of_the_families_are_understood(decoder: Any, tokens: list[str]) -> None:
    backend = Backend(models.WordLevel(vocab={token: at for at, token in enumerate(tokens)}, unk_token="a"))
    if decoder is not None:
        backend.decoder = decoder
    ids = list(range(len(tokens)))
    assert Tokenizer(backend).decode(ids) == backend.decode(ids)


def test_a_decoder_that_is_not_understood_is_refused() -> None:
    with pytest.raises(CheckpointError, match="WordPiece"):
        TokenBytes(json.loads(decoders.WordPiece().__getstate__()))


# Hugging Face directories


def write_directory(directory: Path, **settings_: Any) -> Backend:
    """A byte-level model directory whose tokenizer.json adds a first token of its own."""
    backend = Backend(models.BPE(vocab=BYTE_LEVEL.vocabulary, merges=[]))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|im_start|>", special=True, normalized=False)])
    bos = backend.token_to_id("<|im_start|>")
    backend.post_processor = processors.TemplateProcessing("<|im_start|> $A", special_tokens=[("<|im_start|>", bos)])
    backend.enable_truncation(max_length=5)
    backend.enable_padding(length=12)
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings_))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 3}))
    save_file({"weight": torch.zeros(2)}, directory / "model.safetensors")
    return backend


def test_a_directory_is_tokenized_as_its_tokenizer_json_says(tmp_path: Path) -> None:
    backend = write_directory(
        tmp_path, bos_token="<|im_start|>", eos_token={"content": "<|im_end|>", "lstrip": False}, pad_token="[PAD]"
    )
    backend.no_truncation()
    backend.no_padding()
    tokenizer = Tokenizer.from_checkpoint(open_checkpoint(tmp_path))
    for text in NASTY[:13]:
        if "<|im_end|>" not in text:
            assert tokenizer.encode(text) == backend.encode(text).ids  # neither truncated nor padded
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "[PAD]"}
    assert tokenizer.eos_token_ids == (3,)  # the model's configuration goes first
    ids = [tokenizer.bos_token_id, tokenizer.vocabulary["<|im_end|>"]]
    assert tokenizer.encode("<|im_end|>") == ids  # named by the settings only, yet special
    assert tokenizer.special_ids >= set(ids)
    assert "[PAD]" not in tokenizer.vocabulary  # has no row in the model


@pytest.mark.parametrize(
    "flags", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}, {"add_eos_token": True}]
)
def test_what_stands_around_a_text_is_what_the_tokenizer_file_says(tmp_path: Path, flags: dict[str, bool]) -> None:
    """As in transformers 5, whatever the settings beside it wish."""
    backend = write_directory(tmp_path, bos_token="<|im_start|>", eos_token="<|im_end|>", **flags)
    backend.no_truncation()
    backend.no_padding()
    backend.save(str(tmp_path / "tokenizer.json"))
    config = {"model_type": "llama", "num_attention_heads": 2, "hidden_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer, reference = Tokenizer.from_checkpoint(open_checkpoint(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("x") == reference("x")["input_ids"] == backend.encode("x").ids
    assert tokenizer.encode("x")[0] == tokenizer.bos_token_id
    assert tokenizer.encode("x", add_special_tokens=False) == [tokenizer.vocabulary["x"]]


def test_special_tokens_may_come_from_their_map(tmp_path: Path) -> None:
    write_directory(tmp_path, eos_token="<|im_end|>")
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|end|>", "bos_token": "<|im_start|>"}')
    tokenizer = Tokenizer.from_checkpoint(open_checkpoint(tmp_path))
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}


def test_without_an_end_in_the_configuration_the_tokenizers_own_counts(tmp_path: Path) -> None:
    write_directory(tmp_path, eos_token="<|im_end|>")
    (tmp_path / "config.json").write_text("{}")
    tokenizer = Tokenizer.from_checkpoint(open_checkpoint(tmp_path))
    assert tokenizer.eos_token_ids == (tokenizer.vocabulary["<|im_end|>"],)


def test_a_missing_tokenizer_names_the_mend(tmp_path: Path) -> None:
    write_directory(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json; write one with transformers"):
        Tokenizer.from_checkpoint(open_checkpoint(tmp_path))


@pytest.mark.parametrize("value", ["two", -1, [1, None], True, 1.5])
def test_a_nonsensical_end_of_sequence_is_refused(tmp_path: Path, value: Any) -> None:
    write_directory(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(CheckpointError, match="eos_token_id is"):
        Tokenizer.from_checkpoint(open_checkpoint(tmp_path))


def test_mutated_tokenizer_files_raise_checkpoint_errors_only(tmp_path: Path) -> None:
    write_directory(tmp_path, bos_token="<|im_start|>", add_bos_token=True)
    originals = {
        tmp_path / name: (tmp_path / name).read_bytes() for name in ("tokenizer.json", "tokenizer_config.json")
    }
    rng = random.Random(0)
    refused = 0
    for _ in range(400):
        path = rng.choice(list(originals))
        path.write_bytes(mutate_text(originals[path], rng))
        try:
            tokenizer = Tokenizer.from_checkpoint(open_checkpoint(tmp_path))
            tokenizer.decode(tokenizer.encode("Hello <|im_end|> wörld 123"))
        except CheckpointError:
            refused += 1
        path.write_bytes(originals[path])
    assert 100 < refused < 400


# requests and pairs


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot be written as UTF-8"):
        BYTE_LEVEL.encode("x\ud800")


def test_equal_vocabularies_are_compatible() -> None:
    assert BYTE_LEVEL.compatible_with(byte_level()) is None
    assert BYTE_LEVEL.fingerprint() == byte_level().fingerprint()


def test_the_first_difference_is_named() -> None:
    metadata = byte_level_metadata(WORDS)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"][:-1], "<thought>"]
    last = BYTE_LEVEL.vocab_size - 1
    other = tokenizer_of(metadata)
    assert BYTE_LEVEL.compatible_with(other) == (
        f"token {last} is '<think>' in the first vocabulary and '<thought>' in the second"
    )
    assert BYTE_LEVEL.fingerprint() != other.fingerprint()
    shorter = byte_level_metadata(WORDS)
    for key in ("tokens", "token_type"):
        shorter[f"tokenizer.ggml.{key}"] = shorter[f"tokenizer.ggml.{key}"][:-1]
    assert BYTE_LEVEL.compatible_with(tokenizer_of(shorter)) == (
        f"token {last} is '<think>' in the first vocabulary and None in the second"
    )


def test_a_difference_in_special_tokens_is_named() -> None:
    metadata = byte_level_metadata(WORDS)
    metadata["tokenizer.ggml.token_type"][-1] = 3
    other = tokenizer_of(metadata)
    message = f"token {BYTE_LEVEL.vocab_size - 1} ('<think>') is special in the second and ordinary in the first"
    assert BYTE_LEVEL.compatible_with(other) == message
