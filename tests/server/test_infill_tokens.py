"""The marks between which models of code fill in."""

from __future__ import annotations

import pytest
from small_tokenizers import byte_level_metadata, sentencepiece_metadata, tokenizer_of
from tiny_checkpoint import tiny_tokenizer
from tokenizers import AddedToken

from headstart.entrypoints.prompts import EncodedPrompt
from headstart.text.tokenizer import Tokenizer
from headstart_server.infill_tokens import InfillTokens, inner_tokens

PIPED = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


def with_marks(*marks: str) -> Tokenizer:
    backend = tiny_tokenizer()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("marks", "written"),
    [
        (PIPED, "<|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>"),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>ab<fim_suffix>cd<fim_middle>"),
        (("<fim-prefix>", "<fim-suffix>", "<fim-middle>"), "<fim-prefix>ab<fim-suffix>cd<fim-middle>"),
        (("▁<PRE>", "▁<SUF>", "▁<MID>"), "▁<PRE>ab▁<SUF>cd▁<MID>"),
        (DEEPSEEK, "<｜fim▁begin｜>ab<｜fim▁hole｜>cd<｜fim▁end｜>"),
        (("[SUFFIX]", "[PREFIX]"), "[SUFFIX]cd[PREFIX]ab"),
    ],
)
def test_each_family_marks_the_parts_in_its_own_way(marks: tuple[str, ...], written: str) -> None:
    tokenizer = with_marks(*marks)
    found = InfillTokens.of(tokenizer, {})
    assert found is not None
    before, after = (inner_tokens(tokenizer, text, "prompt") for text in ("ab", "cd"))
    assert tokenizer.decode(found.prompt(before, after), skip_special_tokens=False) == written
    assert {tokenizer.vocabulary[mark] for mark in marks} <= {*found.ends}


def test_a_repository_has_marks_of_its_own_that_end_a_middle() -> None:
    tokenizer = with_marks(*PIPED, "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>", "<|endoftext|>")
    found = InfillTokens.of(tokenizer, {})
    assert found is not None
    names = ("<|repo_name|>", "<|file_sep|>", "<|fim_pad|>", "<|endoftext|>")
    assert (found.repository, found.file) == tuple(tokenizer.vocabulary[name] for name in names[:2])
    assert {tokenizer.vocabulary[name] for name in names} <= {*found.ends}


@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_a_file_names_its_marks_whatever_they_are_called(names: tuple[str, ...]) -> None:
    ids = dict(zip(names, (10, 11, 12), strict=True))
    metadata = byte_level_metadata(**{f"{name}_token_id": token for name, token in ids.items()}, fim_pad_token_id=13)
    found = InfillTokens.of(tokenizer_of(metadata), metadata)
    assert found is not None
    assert found.prompt([1], [2]) == [10, 1, 11, 2, 12]
    assert 13 in found.ends


@pytest.mark.parametrize(
    "ids",
    [
        {},
        {"fim_pre_token_id": 1, "fim_suf_token_id": 2},
        {"fim_pre_token_id": 1, "fim_suf_token_id": 2, "fim_mid_token_id": 10**6},
        {"fim_pre_token_id": "a", "fim_suf_token_id": 2, "fim_mid_token_id": 3},
    ],
)
def test_others_have_none(ids: dict[str, object]) -> None:
    metadata = byte_level_metadata(**ids)
    assert InfillTokens.of(tokenizer_of(metadata), metadata) is None
    assert InfillTokens.of(with_marks("<|fim_prefix|>"), {}) is None


def test_what_spells_a_mark_is_text() -> None:
    tokenizer = with_marks(*PIPED)
    text = "a<|fim_suffix|>b"
    assert len(inner_tokens(tokenizer, text, "prompt")) == len(text)


def test_no_space_is_put_before_what_stands_behind() -> None:
    metadata = sentencepiece_metadata({"▁": -1.0, "a": -2.0, "b": -3.0, "ab": -1.5, "▁a": -1.2})
    tokenizer = tokenizer_of(metadata)
    assert tokenizer.vocabulary["▁a"] in tokenizer.encode("ab", add_special_tokens=False) or tokenizer.encode(
        "ab", add_special_tokens=False
    ) != inner_tokens(tokenizer, "ab", "suffix")
    assert inner_tokens(tokenizer, "ab", "suffix") == [tokenizer.vocabulary["ab"]]


@pytest.mark.parametrize("adds", [True, False])
def test_a_text_that_follows_another_has_no_start_of_its_own(adds: bool) -> None:
    """What a template writes stays, though it may be spelt as the beginning of a sequence."""
    metadata = byte_level_metadata(add_bos_token=adds)
    tokenizer = tokenizer_of(metadata)
    bos = tokenizer.bos_token_id
    assert bos is not None
    assert tokenizer.start == ((bos,) if adds else ())
    prompt = EncodedPrompt("", [bos, 5])
    assert prompt.following([1, 2], tokenizer.start).token_ids == ([1, 2, 5] if adds else [1, 2, bos, 5])
    assert prompt.following([], tokenizer.start).token_ids == [bos, 5]
