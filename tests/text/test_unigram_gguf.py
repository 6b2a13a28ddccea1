"""T5's tokenizer in GGUF files: what llama.cpp's converter writes of a sentencepiece model reads texts as that does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from small_tokenizers import tokenizer_of

from headstart.errors import CheckpointError
from headstart.text.gguf_tokenizer import TokenType
from headstart.text.tokenizer import Tokenizer

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, how are you today?",
    "numbers 1 2 3 4 5 and words",
    "translate English to German: the house is wonderful",
    "[PAD0] is text like any other",
]
TEXTS = (*LINES, "Hello  World\n ünïque 世界 fox世", "", " ", "   leading and trailing   ", "ﬁne ½ thefox")


def trained(path: Path, **settings: Any) -> Path:
    (path / "text.txt").write_text("\n".join(LINES * 30), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(path / "text.txt"),
        model_prefix=str(path / "spiece"),
        vocab_size=100,
        model_type="unigram",
        character_coverage=1.0,
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | settings,
    )
    return path / "spiece.model"


def metadata_of(file: Path, extra: int = 2) -> dict[str, Any]:
    """By the converter's rules; ``extra`` sentinels behind the pieces, and rows that pad the table."""
    own = sentencepiece.SentencePieceProcessor(model_file=str(file))
    read = sentencepiece_model_pb2.ModelProto()
    read.ParseFromString(file.read_bytes())
    tokens = [own.id_to_piece(place) for place in range(own.vocab_size())]
    kinds = [
        TokenType.UNKNOWN if own.is_unknown(place) else TokenType.CONTROL if own.is_control(place) else TokenType.NORMAL
        for place in range(len(tokens))
    ]
    scores = [own.get_score(place) for place in range(len(tokens))]
    tokens += [*(f"<extra_id_{place}>" for place in range(extra)), "[PAD0]", "[PAD1]"]
    kinds += [TokenType.USER_DEFINED] * extra + [TokenType.UNUSED] * 2
    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores + [-1000.0] * extra + [-10000.0] * 2,
        "tokenizer.ggml.token_type": list(map(int, kinds)),
        "tokenizer.ggml.add_space_prefix": read.normalizer_spec.add_dummy_prefix,
        "tokenizer.ggml.remove_extra_whitespaces": read.normalizer_spec.remove_extra_whitespaces,
        "tokenizer.ggml.precompiled_charsmap": list(read.normalizer_spec.precompiled_charsmap),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("unigram"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"remove_extra_whitespaces": False}, {"add_dummy_prefix": False}, {"normalization_rule_name": "identity"}],
    ids=["usual", "all-spaces", "no-space-before", "as-it-is"],
)
def test_texts_are_cut_as_sentencepiece_cuts_them(settings: dict[str, Any], tmp_path: Path) -> None:
    file = trained(tmp_path, **settings)
    tokenizer = tokenizer_of(metadata_of(file))
    own = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=False) == own.encode(text), text
    assert tokenizer.encode("the fox")[-1] == 1
    for text in LINES:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == (1,)


def test_sentinels_are_found_whole_and_rows_that_pad_are_no_text(file: Path) -> None:
    tokenizer = tokenizer_of(metadata_of(file))
    own = sentencepiece.SentencePieceProcessor(model_file=str(file))
    first = own.vocab_size()
    assert tokenizer.encode("the <extra_id_1>", add_special_tokens=False) == [*own.encode("the"), first + 1]
    assert first + 2 not in tokenizer.encode("the [PAD0] fox")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precompiled_charsmap": [300]}, "holds no bytes"),
        ({"precompiled_charsmap": "x"}, "no list of the right kind"),
        ({"unknown_token_id": None, "tokens": None}, "holds no tokenizer.ggml.tokens"),
        ({"unknown_token_id": 9999}, "unknown_token_id is 9999"),
    ],
)
def test_what_makes_no_tokenizer_is_refused(changes: dict[str, Any], message: str, file: Path) -> None:
    metadata = metadata_of(file) | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(CheckpointError, match=message):
        tokenizer_of({key: value for key, value in metadata.items() if value is not None})


def test_a_file_without_an_unknown_token_is_refused(file: Path) -> None:
    metadata = metadata_of(file)
    del metadata["tokenizer.ggml.unknown_token_id"]
    assert isinstance(tokenizer_of(metadata), Tokenizer)  # found by its spelling
    metadata["tokenizer.ggml.tokens"][2] = "<other>"
    with pytest.raises(CheckpointError, match="names no unknown token"):
        tokenizer_of(metadata)
