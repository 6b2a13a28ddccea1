"""Sentencepiece's models: what a file of one says, and the ``tokenizers`` that cut texts as it does.

The form of the files: google/sentencepiece, ``sentencepiece_model.proto``, in protobuf's wire format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headstart.errors import CheckpointError
from headstart.models.files import require_file
from headstart.text.tokenizer_faults import contained

MARK = "\u2581"
"""Stands for a space."""
FOREIGN, NEVER = -1e6, -1e9
"""Scores of single characters that a model does not know, and of what never stands for a text."""
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
"""Fields of a model."""
_NORMAL, _USER_DEFINED = 1, 4
"""Kinds of pieces that stand for a text."""


class ModelKind(IntEnum):
    """``TrainerSpec.model_type``."""

    UNIGRAM = 1
    BPE = 2


@dataclass(frozen=True)
class SentencePieces:
    """What is read of a model."""

    scores: dict[str, float]
    """Piece -> score, of those that stand for a text, in their order."""
    charsmap: bytes
    """The table of the normalizer; empty: there is none."""


def read_sentencepieces(path: Path, kind: ModelKind) -> SentencePieces:
    """A model of one kind.

    Raises:
        CheckpointError: it is missing, damaged, or of another kind.
    """
    require_file(path)
    scores: dict[str, float] = {}
    charsmap, found = b"", int(ModelKind.UNIGRAM)
    try:
        for field, value in _fields(path.read_bytes()):
            if field == _PIECES and isinstance(value, bytes):
                piece = dict(_fields(value))
                if piece.get(3, _NORMAL) in (_NORMAL, _USER_DEFINED):
                    (score,) = struct.unpack("<f", bytes(piece.get(2, bytes(4))))
                    scores[bytes(piece[1]).decode()] = score
            elif field == _TRAINER and isinstance(value, bytes):
                number = dict(_fields(value)).get(3, found)
                found = number if isinstance(number, int) else found
            elif field == _NORMALIZER and isinstance(value, bytes):
                table = dict(_fields(value)).get(2, b"")
                charsmap = table if isinstance(table, bytes) else b""
    except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise CheckpointError(f"{path} is no sentencepiece model, or damaged; fetch it again.") from error
    if charsmap:
        with contained(lambda reason: CheckpointError(f"{path} has a damaged normalizer ({reason}); fetch it again.")):
            normalizers.Precompiled(charsmap)
    if found != kind or not scores:
        raise CheckpointError(f"{path} is no {kind.name.lower()} model of sentencepiece, which is not supported.")
    return SentencePieces(scores, charsmap)


def cutting(model: models.Model, charsmap: bytes, collapses: bool = True, begins_with_space: bool = True) -> Tokenizer:
    """A tokenizer that prepares texts and spells tokens as sentencepiece does.

    Args:
        collapses: spaces at both ends are dropped, and of several only one is kept.
        begins_with_space: a space is put before every text.
    """
    tokenizer = Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if collapses:
        steps += [normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(" {2,}"), " ")]
    scheme = "always" if begins_with_space else "never"
    if begins_with_space and not collapses:
        # Metaspace leaves a text alone that begins with a space.
        steps += [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme=scheme, split=False)
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Metaspace(MARK, prepend_scheme=scheme)
    return tokenizer


def merges_by_score(pieces: Sequence[tuple[str, float]]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score of the third first, the earlier one among equals: what
    sentencepiece's BPE does with its scores."""
    known = {piece for piece, _ in pieces}
    return [
        (piece[:cut], piece[cut:])
        for piece, _ in sorted(pieces, key=lambda item: -item[1])
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


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
