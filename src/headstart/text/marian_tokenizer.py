"""Marian's tokenizer: a sentencepiece model for each language, and one list of ids for both.

``source.spm`` cuts texts, ``vocab.json`` numbers the pieces of both (transformers, ``tokenization_marian.py``). Here
both become one unigram model in the order of ``vocab.json``: pieces of the source have its scores, all others scores so
low that they stand only where the source has nothing. In one case the ids are others than transformers': a run of
several characters of which the source knows none gets the ids that they have by themselves, if the target knows them,
in place of one ``<unk>``. The form of sentencepiece's files: google/sentencepiece, ``sentencepiece_model.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headstart.errors import CheckpointError
from headstart.models.files import read_json, require_file

_FOREIGN, _NEVER = -1e6, -1e9
"""Scores of single characters that the source does not know, and of what never stands for a text."""
_MARK = "\u2581"
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
"""Fields of a model."""
_NORMAL, _USER_DEFINED = 1, 4
"""Kinds of pieces that stand for a text."""
_UNIGRAM = 1
_LANGUAGE = ">>"
"""Begins the tokens that name a language of the output."""


def is_marian(directory: Path) -> bool:
    """Whether a directory has a tokenizer of this kind."""
    return (directory / "source.spm").exists() and (directory / "vocab.json").exists()


def marian_tokenizer(directory: Path) -> str:
    """What a ``tokenizer.json`` of the directory would hold.

    Raises:
        CheckpointError: a file is damaged, or of another kind.
    """
    path = directory / "source.spm"
    scores, charsmap = _read_model(path)
    ids = read_json(directory / "vocab.json")
    numbered = sorted(ids.items(), key=lambda item: item[1] if isinstance(item[1], int) else -1)
    if [number for _, number in numbered] != list(range(len(ids))) or not {"<unk>", "</s>"} <= ids.keys():
        raise CheckpointError(f"{directory / 'vocab.json'} does not number <unk>, </s> and its other tokens from 0 on.")

    def score(piece: str) -> float:
        return scores.get(piece, _FOREIGN if len(piece) == 1 else _NEVER)

    tokenizer = Tokenizer(models.Unigram([(piece, score(piece)) for piece, _ in numbered], ids["<unk>"]))
    steps = [normalizers.Precompiled(charsmap)] if charsmap else []
    tokenizer.normalizer = normalizers.Sequence(
        [*steps, normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_MARK, prepend_scheme="always", split=False)
    tokenizer.decoder = decoders.Metaspace(_MARK, prepend_scheme="always")
    marks = ("</s>", "<pad>", "<unk>")
    special = [piece for piece in ids if piece in marks or (piece.startswith(_LANGUAGE) and piece.endswith("<<"))]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", ids["</s>"])])
    text: str = tokenizer.to_str()
    return text


def _read_model(path: Path) -> tuple[dict[str, float], bytes]:
    """Pieces with their scores, and the table of the normalizer.

    Raises:
        CheckpointError: it is damaged, or no unigram model.
    """
    require_file(path)
    scores: dict[str, float] = {}
    charsmap, kind = b"", _UNIGRAM
    try:
        for field, value in _fields(path.read_bytes()):
            if field == _PIECES and isinstance(value, bytes):
                piece = dict(_fields(value))
                if piece.get(3, _NORMAL) in (_NORMAL, _USER_DEFINED):
                    (score,) = struct.unpack("<f", bytes(piece.get(2, bytes(4))))
                    scores[bytes(piece[1]).decode()] = score
            elif field == _TRAINER and isinstance(value, bytes):
                found = dict(_fields(value)).get(3, _UNIGRAM)
                kind = found if isinstance(found, int) else _UNIGRAM
            elif field == _NORMALIZER and isinstance(value, bytes):
                table = dict(_fields(value)).get(2, b"")
                charsmap = table if isinstance(table, bytes) else b""
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise CheckpointError(f"{path} is no sentencepiece model, or damaged; fetch it again.") from error
    if kind != _UNIGRAM or not scores:
        raise CheckpointError(f"{path} is no unigram model of sentencepiece, which is not supported.")
    return scores, charsmap


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a message in protobuf's wire format: numbers, and whatever else as bytes."""
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number is too long")

    def taken(count: int) -> bytes:
        nonlocal place
        if place + count > len(data):
            raise ValueError("it ends too early")
        place += count
        return data[place - count : place]

    while place < len(data):
        key = number()
        match key & 7:
            case 0:
                yield key >> 3, number()
            case 1:
                yield key >> 3, taken(8)
            case 2:
                yield key >> 3, taken(number())
            case 5:
                yield key >> 3, taken(4)
            case other:
                raise ValueError(f"wire type {other} is unknown")
