"""Filling in: the prompt from which a model of code writes what stands between a text and its continuation.

Families mark the parts by special tokens of their own (Bavarian et al., "Efficient Training of Language Models to Fill
in the Middle", 2022); which ones, and in which order, is by their model cards and llama.cpp's ``llama-vocab.cpp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from headstart.text.tokenizer import Tokenizer

_BESIDE = "☺"
"""Read before a text whose first word must not get the space that some tokenizers put before a text."""


@dataclass(frozen=True)
class _Marks:
    """How a family spells its marks."""

    prefix: str
    suffix: str
    middle: str
    repository: str = ""
    file: str = ""
    ends: tuple[str, ...] = ()
    """What else ends a middle."""
    suffix_first: bool = False


_PIPED = _Marks(
    *("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    *("<|repo_name|>", "<|file_sep|>", ("<|fim_pad|>", "<|endoftext|>", "<|file_separator|>", "<|cursor|>")),
)
_FAMILIES = (
    _PIPED,  # Qwen, CodeGemma, Granite 4
    _Marks(
        *("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"),
        ends=("<fim_pad>", "<|endoftext|>", "<reponame>", "<filename>"),  # StarCoder, Granite
    ),
    _Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>", "<|endoftext|>")),  # SantaCoder
    _Marks("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),  # CodeLlama
    _Marks("<PRE>", "<SUF>", "<MID>", ends=("<EOT>",)),
    _Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    _Marks("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    _Marks("[PREFIX]", "[SUFFIX]", "[MIDDLE]", suffix_first=True),  # Codestral
)
_GGUF_NAMES = {
    "prefix": ("fim_pre", "prefix"),
    "suffix": ("fim_suf", "suffix"),
    "middle": ("fim_mid", "middle"),
    "repository": ("fim_rep",),
    "file": ("fim_sep",),
    "pad": ("fim_pad",),
}
"""Mark -> how ``tokenizer.ggml.*_token_id`` of a GGUF file calls it, the newer name first."""


@dataclass(frozen=True)
class InfillTokens:
    """Token ids of a model's marks."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    """Before the name of a repository, whose files follow."""
    file: int | None = None
    """Before each of them, and its name."""
    ends: tuple[int, ...] = ()
    """Tokens after which nothing belongs to the middle, beside the model's ends of a sequence."""
    suffix_first: bool = False
    """The suffix stands before the prefix, and no mark of the middle behind that."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> Self | None:
        """Those of a model; None: it has none. ``metadata``: of its GGUF file, which names them; else its tokenizer's
        spellings do."""
        named = _named(metadata, tokenizer.vocab_size)
        if named is not None:
            prefix, suffix, middle = (named[mark] for mark in ("prefix", "suffix", "middle"))
            repository, file = named.get("repository"), named.get("file")
            known = next((each for each in _FAMILIES if _spelt(tokenizer, each.prefix) == prefix), None)
            more = _known(tokenizer, () if known is None else known.ends)
            ends = _ends(prefix, suffix, middle, named.get("pad"), repository, file, *more)
            return cls(prefix, suffix, middle, repository, file, ends)
        for family in _FAMILIES:
            spelt = [_spelt(tokenizer, mark) for mark in (family.prefix, family.suffix, family.middle)]
            if family.suffix_first:
                spelt[2] = spelt[0]  # needs no mark of the middle
            marks = [mark for mark in spelt if mark is not None]
            if len(marks) < len(spelt):
                continue
            repository, file = _spelt(tokenizer, family.repository), _spelt(tokenizer, family.file)
            ends = _ends(*marks, repository, file, *_known(tokenizer, (family.middle, *family.ends)))
            return cls(marks[0], marks[1], marks[2], repository, file, ends, family.suffix_first)
        return None

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Token ids from which the middle follows."""
        if self.suffix_first:
            return [self.suffix, *after, self.prefix, *before]
        return [self.prefix, *before, self.suffix, *after, self.middle]


def inner_tokens(tokenizer: Tokenizer, text: str, field: str) -> list[int]:
    """Token ids of a text that something stands before: no space is put in front of it, and what spells a special token
    is ordinary text.

    Raises:
        RequestError: as ``Tokenizer.encode``; ``field`` names the text.
    """
    if not text:
        return []
    plain = tokenizer.encode(text, add_special_tokens=False, parse_special=False, field=field)
    if not plain or tokenizer.without_leading_space(b" ") == b" ":
        return plain
    beside = tokenizer.encode(_BESIDE, add_special_tokens=False, parse_special=False)
    both = tokenizer.encode(_BESIDE + text, add_special_tokens=False, parse_special=False, field=field)
    return both[len(beside) :] if both[: len(beside)] == beside else plain


def _named(metadata: Mapping[str, Any], vocab_size: int) -> dict[str, int] | None:
    """Mark -> id, as a GGUF file says; None: not all that are needed."""
    found: dict[str, int] = {}
    for mark, names in _GGUF_NAMES.items():
        ids = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in names)
        known = next((each for each in ids if isinstance(each, int) and 0 <= each < vocab_size), None)
        if known is not None:
            found[mark] = known
    return found if {"prefix", "suffix", "middle"} <= found.keys() else None


def _spelt(tokenizer: Tokenizer, mark: str) -> int | None:
    return tokenizer.vocabulary.get(mark) if mark else None


def _known(tokenizer: Tokenizer, marks: Iterable[str]) -> list[int]:
    return [found for mark in marks if (found := _spelt(tokenizer, mark)) is not None]


def _ends(*marks: int | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(mark for mark in marks if mark is not None))
