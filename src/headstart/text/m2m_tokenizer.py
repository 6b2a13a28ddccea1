"""M2M100's tokenizer: a BPE model of sentencepiece, a list of ids, and a token for each language behind them.

``sentencepiece.bpe.model`` cuts texts, ``vocab.json`` numbers the pieces, and the languages follow in an order that
the class of the tokenizer knows (transformers, ``tokenization_m2m_100.py``). A text stands between the token of its
language, ``src_lang`` of tokenizer_config.json or English, and ``</s>``. A piece that ``vocab.json`` does not number is
cut further here; transformers reads it as ``<unk>``.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, models, processors

from headstart.errors import CheckpointError
from headstart.models.files import read_json
from headstart.text.marian_tokenizer import numbered_from_zero
from headstart.text.sentencepiece_model import ModelKind, cutting, merges_by_score, read_sentencepieces

_MODEL, _VOCABULARY, _SETTINGS = "sentencepiece.bpe.model", "vocab.json", "tokenizer_config.json"
_LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
    "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""``language_codes`` -> the languages in the order of their ids."""


def is_m2m(directory: Path) -> bool:
    """Whether a directory has a tokenizer of this kind."""
    return (directory / _MODEL).exists() and (directory / _VOCABULARY).exists()


def m2m_tokenizer(directory: Path) -> str:
    """What a ``tokenizer.json`` of the directory would hold.

    Raises:
        CheckpointError: a file is damaged, or of another kind.
    """
    path = directory / _SETTINGS
    settings = read_json(path) if path.exists() else {}
    codes = settings.get("language_codes", "m2m100")
    if codes not in _LANGUAGES:
        raise CheckpointError(f"{path}: language_codes is {codes!r:.60}; it must be {' or '.join(_LANGUAGES)}.")
    languages = _LANGUAGES[codes].split()
    source = settings.get("src_lang") or "en"
    if source not in languages:
        raise CheckpointError(f"{path}: src_lang is {source!r:.60}; it must be one of {', '.join(languages)}.")
    read = read_sentencepieces(directory / _MODEL, ModelKind.BPE)
    ids = numbered_from_zero(directory / _VOCABULARY, ("<s>", "<pad>", "</s>", "<unk>"))
    merges = merges_by_score([(piece, score) for piece, score in read.scores.items() if piece in ids])
    tokenizer = cutting(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True), read.charsmap)
    special = ["<s>", "<pad>", "</s>", "<unk>", *(f"__{language}__" for language in languages)]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    around = [(token, tokenizer.token_to_id(token)) for token in (f"__{source}__", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"__{source}__ $A </s>", special_tokens=around)
    text: str = tokenizer.to_str()
    return text
