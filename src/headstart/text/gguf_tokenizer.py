"""Building a tokenizer from the metadata of a GGUF file.

The keys are those of ``docs/gguf.md`` (ggml-org/ggml). What they leave open (how a named pre-tokenizer cuts, which
flags it implies, how scores become merges) follows llama.cpp's ``src/llama-vocab.cpp``; where the original
``tokenizer.json`` of a family is known to do more (Unicode normalisation), that.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headstart.errors import CheckpointError
from headstart.text.sentencepiece_model import NEVER, cutting, merges_by_score
from headstart.text.tokenizer_faults import MOST_GROWTH, growth
from headstart.text.tokenizer_parts import TokenizerParts, set_affixes


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class PreTokenizer:
    """How a byte-level vocabulary cuts text into words before merging."""

    split: str | None = None
    """A regular expression whose matches are words; None for GPT-2's own."""
    digits: bool = False
    """Every digit is a word."""
    nfc: bool = False
    """Text is brought to Unicode normal form C first."""
    whole_words: bool = False
    """A word that is a token is taken as it is, whatever its merges (``ignore_merges``)."""
    add_bos: bool = False
    """Unless ``tokenizer.ggml.add_bos_token`` says otherwise."""


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(suffix: str, digits: str) -> str:
    """The family of patterns that keep a change from lower to upper case between words (GPT-4o, Tekken)."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = f"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_GPT2 = PreTokenizer()
_NEOX = PreTokenizer(nfc=True)
_DIGITS = PreTokenizer(digits=True)
_LLAMA3_BOS = PreTokenizer(split=_LLAMA3, whole_words=True, add_bos=True)
_GPT4O = PreTokenizer(split=_cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}"))

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "exaone4", "trillion", "granite-docling"), _GPT2),
    **dict.fromkeys(("olmo", "mpt"), _NEOX),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3_BOS),
    **dict.fromkeys(("dbrx", "smaug-bpe"), PreTokenizer(split=_LLAMA3)),
    "qwen2": PreTokenizer(split=_QWEN2, nfc=True),
    "qwen35": PreTokenizer(split=_QWEN35, nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan"), PreTokenizer(split=_QWEN2)),
    "tekken": PreTokenizer(split=_cased("", r"\p{N}"), whole_words=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
"""``tokenizer.ggml.pre`` -> what it stands for."""

_ENDS = {
    *("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|im_end|>", "<|endoftext|>", "<|end|>", "<end_of_turn>"),
    *("<eos>", "</s>", "<EOT>", "_<EOT>", "<end_of_utterance>", "<turn|>", "<|tool_response>"),
}
"""Tokens with which models end an answer or a document, as llama.cpp knows them by their spelling: files name one or
two of the several that a model's ``generation_config.json`` has."""
_KEPT_SPACE = {"<unk>", "<s>", "<|endoftext|>"}
"""The special tokens of Phi-3 behind which white space counts."""


_ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # the format's own spelling
    "pad_token": "padding",
    "mask_token": "mask",
}
"""Role -> ``tokenizer.ggml.*_token_id``."""


def read_gguf_tokenizer(metadata: Mapping[str, Any], source: str) -> TokenizerParts:
    """Build the tokenizer that ``metadata`` describes; ``source`` names the file in messages.

    Raises:
        CheckpointError: keys are missing or malformed, or name a tokenizer that is not supported.
    """
    vocabulary = _Vocabulary(metadata, source)
    add_bos = always_bos = add_eos = False
    match metadata.get("tokenizer.ggml.model"):
        case "gpt2":
            backend, add_bos = _byte_level(vocabulary)
        case "llama":
            backend, add_bos = _sentencepiece(vocabulary), True
        case "gemma4":
            backend, always_bos = _gemma(vocabulary), True
        case "t5":
            backend, add_eos = _unigram(vocabulary), True
        case other:
            raise CheckpointError(
                f"{source}: tokenizer.ggml.model is {other!r:.60}, which is not supported ('gpt2', 'llama', "
                "'gemma4' and 't5' are)."
            )
    vocabulary.mark_special_tokens(backend)
    set_affixes(
        backend,
        # Early files of Gemma 4 say that there is none, and it cannot do without; llama.cpp puts it there, too.
        prefix=vocabulary.token_id("bos") if vocabulary.flag("add_bos_token", default=add_bos) or always_bos else None,
        suffix=vocabulary.token_id("eos") if vocabulary.flag("add_eos_token", default=add_eos) else None,
    )
    multiplies = (
        1.0 if backend.normalizer is None else growth({"normalizer": json.loads(backend.normalizer.__getstate__())})
    )
    if multiplies > MOST_GROWTH:
        raise CheckpointError(
            f"{source} may make {multiplies:.3g} bytes of one byte of text, above the limit of {MOST_GROWTH:.0f}; "
            "fetch it again."
        )
    return TokenizerParts(backend, gguf_special_tokens(metadata), vocabulary.end_of_sequence(), multiplies)


def gguf_special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Role -> spelling."""
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in _ROLES.items()}
    return {role: tokens[at] for role, at in ids.items() if isinstance(at, int) and 0 <= at < len(tokens)}


class _Vocabulary:
    """The checked lists and flags of ``tokenizer.ggml.*``."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self._metadata = metadata
        self.source = source
        self.tokens: list[str] = self._list("tokens", str)
        if not self.tokens:
            raise CheckpointError(f"{source} holds no tokenizer.ggml.tokens; use a file that carries its tokenizer.")
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for token_id, token in enumerate(self.tokens) if self.ids[token] != token_id)
            raise CheckpointError(f"{source}: tokenizer.ggml.tokens holds {twice!r:.60} twice; convert the file again.")
        self.types: list[int] = self._list("token_type", int) or [TokenType.NORMAL] * len(self.tokens)
        self.scores: list[float] = self._list("scores", (int, float)) or [0.0] * len(self.tokens)
        for key, values in (("token_type", self.types), ("scores", self.scores)):
            if len(values) != len(self.tokens):
                raise CheckpointError(
                    f"{source}: tokenizer.ggml.{key} has {len(values)} entries for {len(self.tokens)} tokens; "
                    "convert the file again."
                )

    def merges(self) -> list[tuple[str, str]]:
        """The merges in order of rank. Each is written "left right"; a space cannot begin a token."""
        merges = []
        for merge in self._list("merges", str):
            cut = merge.find(" ", 1)
            left, right = merge[:cut], merge[cut + 1 :]
            if cut < 0 or left not in self.ids or right not in self.ids or left + right not in self.ids:
                raise CheckpointError(
                    f"{self.source}: the merge {merge!r:.60} does not join two tokens into one; convert the file again."
                )
            merges.append((left, right))
        return merges

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{self.source}: tokenizer.ggml.{key} is {value!r:.60}; it must be true or false.")
        return value

    def token_id(self, role: str) -> int | None:
        key = f"tokenizer.ggml.{role}_token_id"
        value = self._metadata.get(key)
        if value is not None and (not isinstance(value, int) or not 0 <= value < len(self.tokens)):
            raise CheckpointError(f"{self.source}: {key} is {value!r:.60}; ids go from 0 to {len(self.tokens) - 1}.")
        return value

    def charsmap(self) -> bytes:
        """The table of sentencepiece's normalizer; empty: there is none."""
        values = self._list("precompiled_charsmap", int)
        if not all(-128 <= value < 256 for value in values):
            raise CheckpointError(
                f"{self.source}: tokenizer.ggml.precompiled_charsmap holds no bytes; convert it again."
            )
        return bytes(value % 256 for value in values)

    def pre_tokenizer(self) -> PreTokenizer:
        name = self._metadata.get("tokenizer.ggml.pre", "default")
        if name == "default":
            warnings.warn(
                f"{self.source} does not say how its tokenizer cuts text into words (tokenizer.ggml.pre); GPT-2's rule "
                "is taken, and prompts may be encoded unlike in training. Convert the file again with a current tool.",
                stacklevel=2,
            )
            return _GPT2
        known = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
        if known is None:
            raise CheckpointError(
                f"{self.source}: tokenizer.ggml.pre is {name!r:.60}, which is not supported; use the model's Hugging "
                "Face directory, whose tokenizer.json says how it cuts text."
            )
        return known

    def mark_special_tokens(self, backend: Backend) -> None:
        """Have control and user-defined tokens recognised whole; only the former are special."""
        ends = {self.token_id(role) for role in ("bos", "eos", "eot", "eom")}
        strips = self._strips_space()
        special, ordinary = [], []
        for token_id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            rstrip = strips and token not in _KEPT_SPACE
            if kind in (TokenType.CONTROL, TokenType.UNKNOWN) or token_id in ends:
                special.append(AddedToken(token, special=True, normalized=False, rstrip=rstrip))
            elif kind == TokenType.USER_DEFINED:
                ordinary.append(AddedToken(token, special=False, normalized=False, rstrip=rstrip))
        backend.add_special_tokens(special)
        backend.add_tokens(ordinary)

    def end_of_sequence(self) -> tuple[int, ...]:
        """The ends that the file names, and those that are known by their spelling."""
        named = [self.token_id(role) for role in ("eos", "eot", "eom")]
        template = self._metadata.get("tokenizer.chat_template")
        for token in sorted(_ENDS & self.ids.keys(), key=self.ids.__getitem__):
            # Where the types are lost, what a template writes is no mere text.
            if self.types[self.ids[token]] != TokenType.NORMAL or (isinstance(template, str) and token in template):
                named.append(self.ids[token])
        return tuple(dict.fromkeys(token_id for token_id in named if token_id is not None))

    def _strips_space(self) -> bool:
        """Whether special tokens swallow the white space behind them, as Phi-3's do by its tokenizer.json. GGUF files
        do not say; llama.cpp goes by the model's name."""
        name = self._metadata.get("general.name")
        named = isinstance(name, str) and re.search(r"phi-?3", name, re.IGNORECASE) is not None
        own = (self._metadata.get("general.architecture"), self._metadata.get("tokenizer.ggml.model"))
        return named or own == ("phi3", "llama")

    def _list(self, key: str, kind: type | tuple[type, ...]) -> list[Any]:
        values = self._metadata.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise CheckpointError(
                f"{self.source}: tokenizer.ggml.{key} is no list of the right kind; convert it again."
            )
        return values


def _byte_level(vocabulary: _Vocabulary) -> tuple[Backend, bool]:
    """GPT-2's byte-level BPE -> (backend, whether texts get a first token unless the file says otherwise)."""
    rule = vocabulary.pre_tokenizer()
    backend = Backend(models.BPE(vocab=vocabulary.ids, merges=vocabulary.merges(), ignore_merges=rule.whole_words))
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if rule.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if rule.split is not None:
        steps.append(pre_tokenizers.Split(Regex(rule.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend, rule.add_bos


def _sentencepiece(vocabulary: _Vocabulary) -> Backend:
    """SentencePiece's BPE with byte fallback: of all neighbours whose join is a token, the best-scored join first."""
    return _with_spaces(vocabulary, _merges_by_score(vocabulary), vocabulary.flag("add_space_prefix", default=True))


def _gemma(vocabulary: _Vocabulary) -> Backend:
    """The same with the merges that the file lists: Gemma 4's, as transformers' GemmaTokenizer has them. Texts are not
    cut before; llama.cpp cuts at ends of lines, which no merge goes across but one of such ends alone."""
    return _with_spaces(vocabulary, vocabulary.merges(), prefix=False)


def _with_spaces(vocabulary: _Vocabulary, merges: list[tuple[str, str]], prefix: bool) -> Backend:
    """BPE of a text whose spaces are spelled; ``prefix``: it begins with one."""
    unknown = vocabulary.token_id("unknown")
    backend = Backend(
        models.BPE(
            vocab=vocabulary.ids,
            merges=merges,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    usual = (TokenType.NORMAL, TokenType.USER_DEFINED)
    scored = zip(vocabulary.tokens, vocabulary.scores, vocabulary.types, strict=True)
    return merges_by_score([(token, score) for token, score, kind in scored if kind in usual])


def _unigram(vocabulary: _Vocabulary) -> Backend:
    """T5's: of all ways to cut a text, the one with the best sum of scores (llama.cpp's "t5"). A row that stands for no
    text is taken only where its spelling holds characters that no piece has."""
    unknown = vocabulary.token_id("unknown")
    unknown = vocabulary.ids.get("<unk>") if unknown is None else unknown
    if unknown is None:
        raise CheckpointError(f"{vocabulary.source} names no unknown token; convert the file again.")
    usual = (TokenType.NORMAL, TokenType.USER_DEFINED)
    scored = zip(vocabulary.tokens, vocabulary.scores, vocabulary.types, strict=True)
    pieces = [(token, score if kind in usual else NEVER) for token, score, kind in scored]
    return cutting(
        models.Unigram(pieces, unknown),
        vocabulary.charsmap(),
        collapses=vocabulary.flag("remove_extra_whitespaces", default=True),
        begins_with_space=vocabulary.flag("add_space_prefix", default=True),
    )
