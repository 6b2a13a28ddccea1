"""Marian's tokenizer: a sentencepiece model for each language, and one list of ids for both, or one for each.

``source.spm`` cuts texts, ``vocab.json`` numbers the pieces of both (transformers, ``tokenization_marian.py``). Here
both become one unigram model in the order of ``vocab.json``: pieces of the source have its scores, all others scores so
low that they stand only where the source has nothing. In one case the ids are others than transformers': a run of
several characters of which the source knows none gets the ids that they have by themselves, if the target knows them,
in place of one ``<unk>``. Where each side has a vocabulary of its own (``separate_vocabs``), ``target.spm`` and
``target_vocab.json`` make the target's in the same way.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, models, processors

from headstart.errors import CheckpointError
from headstart.models.files import read_json
from headstart.text.sentencepiece_model import FOREIGN, NEVER, ModelKind, cutting, read_sentencepieces

_SOURCE, _TARGET = ("source.spm", "vocab.json"), ("target.spm", "target_vocab.json")
_LANGUAGE = ">>"
"""Begins the tokens that name a language of the output."""


def is_marian(directory: Path) -> bool:
    """Whether a directory has a tokenizer of this kind."""
    return all((directory / name).exists() for name in _SOURCE)


def has_two_vocabularies(directory: Path) -> bool:
    """Whether its target has a list of ids of its own."""
    return is_marian(directory) and all((directory / name).exists() for name in _TARGET)


def marian_tokenizer(directory: Path, of_target: bool = False) -> str:
    """What a ``tokenizer.json`` of the directory would hold; ``of_target``: for the target's own ids.

    Raises:
        CheckpointError: a file is damaged, or of another kind.
    """
    model, vocabulary = (directory / name for name in (_TARGET if of_target else _SOURCE))
    source = read_sentencepieces(model, ModelKind.UNIGRAM)
    ids = numbered_from_zero(vocabulary, ("<unk>", "</s>"))

    def score(piece: str) -> float:
        return source.scores.get(piece, FOREIGN if len(piece) == 1 else NEVER)

    tokenizer = cutting(models.Unigram([(piece, score(piece)) for piece in ids], ids["<unk>"]), source.charsmap)
    marks = ("</s>", "<pad>", "<unk>")
    special = [piece for piece in ids if piece in marks or (piece.startswith(_LANGUAGE) and piece.endswith("<<"))]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in special])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", ids["</s>"])])
    text: str = tokenizer.to_str()
    return text


def numbered_from_zero(path: Path, needed: tuple[str, ...]) -> dict[str, int]:
    """Token -> id of a file, in the order of their ids.

    Raises:
        CheckpointError: it is damaged, leaves ids out, or lacks a token that is needed.
    """
    ids = read_json(path)
    ordered = sorted(ids.items(), key=lambda item: item[1] if isinstance(item[1], int) else -1)
    if [number for _, number in ordered] != list(range(len(ids))) or not set(needed) <= ids.keys():
        raise CheckpointError(f"{path} does not number {', '.join(needed)} and its other tokens from 0 on.")
    return dict(ordered)
