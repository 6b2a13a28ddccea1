"""M2M100's own files, read as transformers' tokenizer reads them."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from mutations import mutate
from transformers import M2M100Tokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from headstart.errors import CheckpointError, RequestError
from headstart.text.directory_tokenizer import read_directory_tokenizer
from headstart.text.languages import in_language, language_token
from headstart.text.tokenizer import Tokenizer

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "hello world, how are you today?",
    "der schnelle braune Fuchs springt über den faulen Hund",
    "numbers 1 2 3 4 5 and words",
]
TEXTS = (
    *LINES,
    "Hello  World\n\n  ünïque 世界 fox世",
    "",
    " ",
    "   leading and trailing   ",
    "ﬁne ½",
    "xyzzy__de__ fox",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 150 pieces, of which the list of ids lacks the rarest two, and has two more at its end."""
    path = tmp_path_factory.mktemp("m2m")
    (path / "text.txt").write_text("\n".join(LINES * 30), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(path / "text.txt"),
        model_prefix=str(path / "sentencepiece.bpe"),
        vocab_size=150,
        model_type="bpe",
        character_coverage=1.0,
        minloglevel=2,
    )
    own = sentencepiece.SentencePieceProcessor(model_file=str(path / "sentencepiece.bpe.model"))
    pieces = [own.id_to_piece(place) for place in range(3, 150)]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces), "madeupword0", "madeupword1"]
    (path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}), encoding="utf-8")
    (path / "config.json").write_text(json.dumps({"model_type": "m2m_100"}))
    listed = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    settings = {"eos_token": "</s>", "bos_token": "<s>", "additional_special_tokens": listed}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def load(directory: Path, **settings: Any) -> Tokenizer:
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    parts = read_directory_tokenizer(directory, {"eos_token_id": 2})
    return Tokenizer(parts.backend, parts.special_tokens, parts.eos_token_ids, growth=parts.growth)


@pytest.mark.parametrize("language", [None, "de"])
def test_ids_are_those_of_transformers(language: str | None, directory: Path) -> None:
    tokenizer = load(directory, src_lang=language)
    reference = M2M100Tokenizer.from_pretrained(directory, src_lang=language)
    for text in TEXTS:
        assert tokenizer.encode(text) == reference(text)["input_ids"], text
    assert tokenizer.vocab_size == 153 + 100
    for code in ("en", "de", "zu"):
        assert language_token(tokenizer, code, "tgt_lang") == reference.get_lang_id(code)
        assert in_language(tokenizer.encode("fox"), tokenizer, code) == [
            reference.get_lang_id(code),
            *tokenizer.encode("fox")[1:],
        ]
    said = tokenizer.encode("hello world, fox")
    assert tokenizer.decode(said) == reference.decode(said, skip_special_tokens=True) == "hello world, fox"


def test_eight_languages_of_wmt21(directory: Path) -> None:
    tokenizer = load(directory, language_codes="wmt21", additional_special_tokens=[])
    reference = M2M100Tokenizer.from_pretrained(directory, language_codes="wmt21")
    assert tokenizer.encode("hello") == reference("hello")["input_ids"]
    assert language_token(tokenizer, "de", "tgt_lang") == reference.get_lang_id("de") == 153 + 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"language_codes": "m2m200"}, "must be m2m100 or wmt21"),
        ({"src_lang": "xx"}, "src_lang is 'xx'; it must be one"),
    ],
)
def test_settings_that_name_nothing_are_refused(settings: dict[str, str], message: str, directory: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(directory, **settings)


def test_languages_that_are_not_there_get_a_sentence(directory: Path) -> None:
    tokenizer = load(directory)
    with pytest.raises(RequestError, match=r"tgt_lang is 'french'.*no token for"):
        language_token(tokenizer, "french", "tgt_lang")
    with pytest.raises(RequestError, match="did you mean '__de__'"):
        language_token(tokenizer, "__de_", "tgt_lang")
    with pytest.raises(RequestError, match="puts no language beside a text"):
        in_language([5, 6], tokenizer, "de")


def test_damaged_files_are_refused_in_a_sentence(directory: Path) -> None:
    rng = random.Random(2)
    whole = (directory / "sentencepiece.bpe.model").read_bytes()
    for _ in range(60):
        (directory / "sentencepiece.bpe.model").write_bytes(mutate(whole, rng))
        try:
            load(directory).encode("hello fox")
        except (CheckpointError, RequestError) as error:
            assert str(error).endswith(".")  # noqa: PT017
    (directory / "sentencepiece.bpe.model").write_bytes(whole)
    (directory / "vocab.json").write_text('{"<s>": 0}')
    with pytest.raises(CheckpointError, match="does not number"):
        load(directory)
