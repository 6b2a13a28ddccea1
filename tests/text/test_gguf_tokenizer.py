"""Tokenizers from GGUF metadata: cut as the named pre-tokenizer cuts, scored as SentencePiece scores."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutate
from small_tokenizers import byte_level, byte_level_metadata, sentencepiece, sentencepiece_metadata, tokenizer_of
from transformers import GemmaTokenizer

from headstart.errors import CheckpointError, RequestError
from headstart.models.checkpoint import open_checkpoint
from headstart.text.chat import ChatTemplate
from headstart.text.gguf_tokenizer import PRE_TOKENIZERS, TokenType
from headstart.text.tokenizer import Tokenizer

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda text: "<|" not in text)
"""Special tokens are no text: they are read as what they are, and not shown. Hypothesis finds their names in code."""


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "1234", ["1234"]),
        ("smollm", "1234", ["1", "2", "3", "4"]),
        ("starcoder", "1234", ["1", "2", "3", "4"]),
        ("llama-bpe", "1234", ["123", "4"]),
        ("qwen2", "1234", ["1", "2", "3", "4"]),
        ("tekken", "1234", ["1", "2", "3", "4"]),
        ("gpt-4o", "1234", ["123", "4"]),
        ("gpt-2", "aB", ["aB"]),
        ("llama-bpe", "aB", ["aB"]),
        ("gpt-4o", "aB", ["a", "B"]),
        ("tekken", "aB", ["a", "B"]),
        ("gpt-2", "I'S", ["I", "'", "S"]),
        ("llama-bpe", "I'S", ["I", "'S"]),
        ("gpt-2", "x.\n", ["x", ".", "\n"]),
        ("llama-bpe", "x.\n", ["x", ".\n"]),
        ("gpt-2", "  1", [" ", " 1"]),
        ("smollm", "  1", ["  ", "1"]),
    ],
)
def test_each_pre_tokenizer_cuts_in_its_own_way(pre: str, text: str, expected: list[str]) -> None:
    tokenizer = byte_level("1234 aB 'S .\n __ _1", pre=pre)
    assert pieces(tokenizer, text) == expected


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_text_survives_the_way_to_tokens_and_back(pre: str) -> None:
    tokenizer = byte_level(pre=pre)

    @settings(max_examples=25, deadline=None)
    @given(ANY_TEXT)
    def survives(text: str) -> None:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if not PRE_TOKENIZERS[pre].nfc:
            assert tokenizer.decode(ids) == text
        assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids

    survives()


def test_normal_form_where_the_family_has_it() -> None:
    assert byte_level(pre="qwen2").encode("e\u0301") == byte_level(pre="qwen2").encode("é")
    assert byte_level(pre="smollm").encode("e\u0301") != byte_level(pre="smollm").encode("é")


def test_a_whole_word_needs_no_merges_where_the_family_says_so() -> None:
    metadata = byte_level_metadata("abc")
    metadata["tokenizer.ggml.merges"] = []
    assert pieces(tokenizer_of({**metadata, "tokenizer.ggml.pre": "llama-bpe"}), "abc") == ["abc"]
    assert pieces(tokenizer_of({**metadata, "tokenizer.ggml.pre": "gpt-2"}), "abc") == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("pre", "flags", "first", "last"),
    [
        ("gpt-2", {}, False, False),
        ("llama-bpe", {}, True, False),
        ("llama-bpe", {"add_bos_token": False}, False, False),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, True, True),
    ],
)
def test_first_and_last_tokens(pre: str, flags: dict[str, bool], first: bool, last: bool) -> None:
    tokenizer = byte_level(pre=pre, **flags)
    bare = tokenizer.encode("x", add_special_tokens=False)
    assert tokenizer.bos_token_id is not None
    wanted = [tokenizer.bos_token_id] * first + bare + [tokenizer.eos_token_ids[0]] * last
    assert tokenizer.encode("x") == wanted


def test_special_tokens_are_read_whole_unless_told_not_to() -> None:
    tokenizer = byte_level()
    text = "x<|im_end|><think>y"
    assert pieces(tokenizer, text) == ["x", "<|im_end|>", "<think>", "y"]
    literal = tokenizer.encode(text, parse_special=False)
    assert not tokenizer.special_ids & set(literal)
    assert tokenizer.decode(literal) == text
    assert tokenizer.decode(tokenizer.encode(text)) == "x<think>y"  # user-defined tokens are text
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text


def ended(tokens: dict[str, TokenType], template: str | None = None, **ids: str) -> list[str]:
    """What ends a sequence of a vocabulary with these tokens, of which ``ids`` names some by their role."""
    metadata = byte_level_metadata()
    spellings, types = list(metadata["tokenizer.ggml.tokens"][:256]), [int(TokenType.NORMAL)] * 256
    spellings += tokens
    types += map(int, tokens.values())
    metadata |= {"tokenizer.ggml.tokens": spellings, "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": []}
    metadata |= {f"tokenizer.ggml.{role}_token_id": spellings.index(ids.get(role, "a")) for role in ("bos", "eos")}
    metadata |= {f"tokenizer.ggml.{role}_token_id": spellings.index(token) for role, token in ids.items()}
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    return [spellings[token_id] for token_id in tokenizer_of(metadata).eos_token_ids]


CONTROL, NORMAL, USER = TokenType.CONTROL, TokenType.NORMAL, TokenType.USER_DEFINED


@pytest.mark.parametrize(
    ("tokens", "ids", "expected"),
    [
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], {"eos": "<|im_end|>"}, ["<|im_end|>", "<|endoftext|>"]),
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], {"eos": "<|endoftext|>"}, ["<|endoftext|>", "<|im_end|>"]),
        (
            ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
            {"bos": "<|begin_of_text|>", "eos": "<|eot_id|>"},
            ["<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"],
        ),
        (["<eos>", "<bos>", "<end_of_turn>"], {"eos": "<end_of_turn>"}, ["<end_of_turn>", "<eos>"]),
        (["<eos>", "<bos>", "<end_of_turn>"], {"eos": "<eos>", "eot": "<end_of_turn>"}, ["<eos>", "<end_of_turn>"]),
        (
            ["<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|end|>"],
            {"eos": "<|end|>"},
            ["<|end|>", "</s>", "<|endoftext|>"],
        ),
        (
            ["<eos>", "<|turn>", "<turn|>", "<|tool_response>"],
            {"eos": "<turn|>"},
            ["<turn|>", "<eos>", "<|tool_response>"],
        ),
        (["<own_end>", "<own_call>"], {"eos": "<own_end>", "eom": "<own_call>"}, ["<own_end>", "<own_call>"]),
    ],
    ids=["qwen", "qwen-base", "llama3", "gemma", "gemma-turn", "phi3", "gemma4", "own"],
)
@pytest.mark.parametrize("kind", [CONTROL, USER])
def test_what_ends_a_sequence(tokens: list[str], ids: dict[str, str], expected: list[str], kind: TokenType) -> None:
    """All that ``generation_config.json`` has beside a model of the kind: files name but one or two of them."""
    assert ended(dict.fromkeys(tokens, kind), **ids) == expected


def test_an_end_that_is_but_text_ends_nothing_unless_the_template_writes_it() -> None:
    tokens = {"<|end|>": CONTROL, "</s>": NORMAL, "<|im_end|>": NORMAL}
    assert ended(tokens, eos="<|end|>") == ["<|end|>"]
    assert ended(tokens, "{{ '<|im_end|>' }}", eos="<|end|>") == ["<|end|>", "<|im_end|>"]


# SentencePiece


def best_join_first(scores: dict[str, float], text: str) -> list[str]:
    """SentencePiece's BPE, written down plainly: join the neighbours whose join scores best, leftmost among equals."""
    symbols = list(text)
    while True:
        joins = [(scores[a + b], -at) for at, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores]
        if not joins:
            return symbols
        at = -max(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


def test_sentencepiece_joins_the_best_score_first() -> None:
    rng = random.Random(3)
    words = {"".join(rng.choices("ab▁", k=rng.randint(2, 4))) for _ in range(40)}
    scores = {piece: -float(rank) for rank, piece in enumerate([*sorted(words), "a", "b", "▁"])}
    tokenizer = tokenizer_of(sentencepiece_metadata(scores, add_space_prefix=False, add_bos_token=False))
    for _ in range(300):
        text = "".join(rng.choices("ab ", k=rng.randint(0, 25)))
        expected = best_join_first(scores, text.replace(" ", "▁"))
        assert pieces(tokenizer, text) == [piece.replace("▁", " ") for piece in expected]


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT)
def test_sentencepiece_texts_survive_by_byte_fallback(text: str) -> None:
    text = text.replace("▁", "")  # the mark itself stands for a space
    tokenizer = SENTENCEPIECE
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


SENTENCEPIECE = sentencepiece()


def test_sentencepiece_puts_a_space_in_front() -> None:
    assert pieces(SENTENCEPIECE, "the") == [" the"]
    assert pieces(sentencepiece(add_space_prefix=False), "the") == ["the"]
    assert SENTENCEPIECE.encode("") == [1]
    assert SENTENCEPIECE.encode("the")[0] == 1


def test_gemma4_joins_by_its_own_merges() -> None:
    """As transformers' tokenizer of the family does; ends of lines are joined like letters."""
    rng = random.Random(4)
    pairs: dict[tuple[str, str], None] = {("\n", "\n"): None, ("\n\n", "\n"): None}
    known = ["a", "b", "▁", "\n"]
    for _ in range(40):
        left, right = rng.choice(known), rng.choice(known)
        if "\n" not in left + right and len(left + right) < 6:
            pairs[left, right] = None
            known += [left + right]
    joined = dict.fromkeys(["a", "b", "▁", "\n", *(left + right for left, right in pairs)])
    metadata = sentencepiece_metadata(dict.fromkeys(joined, 0.0), model="gemma4", add_bos_token=False)
    metadata["tokenizer.ggml.merges"] = [f"{left} {right}" for left, right in pairs]
    tokenizer = tokenizer_of(metadata)
    ids = {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    reference = GemmaTokenizer(vocab=ids, merges=list(pairs), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    for _ in range(300):
        text = "".join(rng.choices("ab \nü", k=rng.randint(0, 25)))
        expected = reference.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text, add_special_tokens=False) == expected
        assert tokenizer.decode(expected) == text
    assert tokenizer.encode("a") == [1, ids["a"]]  # whatever early files say of it


def phi3_with(facts: dict[str, str], kind: TokenType) -> Tokenizer:
    """Phi-3's special tokens and a word at their own ids."""
    words = ["▁", "H", "e", "l", "o", "He", "ll", "Hell", "Hello", "▁Hello"]
    metadata = sentencepiece_metadata({chr(0x20000 + i): -1e9 for i in range(32000 - 259)}, add_bos_token=False)
    tokens, types, scores = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "scores"))
    for rank, (place, word) in enumerate(zip([*range(300, 309), 15043], words, strict=True)):
        tokens[place], scores[place] = word, -float(rank)
    specials = ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|placeholder2|>", "<|placeholder3|>"]
    specials += ["<|placeholder4|>", "<|system|>", "<|end|>", "<|placeholder5|>", "<|placeholder6|>", "<|user|>"]
    tokens += specials
    types += [int(kind)] * len(specials)
    scores += [0.0] * len(specials)
    return tokenizer_of(metadata | facts)


@pytest.mark.parametrize("kind", [CONTROL, USER])
def test_special_tokens_of_phi3_swallow_the_white_space_behind_them(kind: TokenType) -> None:
    by_name = {"general.architecture": "llama", "general.name": "Phi-3 Mini 4k Instruct"}
    for facts in (by_name, {"general.architecture": "phi3", "general.name": "Phi 3.5 Mini Instruct"}):
        tokenizer = phi3_with(facts, kind)
        assert tokenizer.encode("<|user|>\nHello<|end|>\n<|assistant|>\n") == [32010, 15043, 32007, 32001]
        assert tokenizer.encode("<|user|> \n\n Hello") == [32010, 15043]
        assert tokenizer.encode("<|endoftext|>\n")[1:] != []
        assert tokenizer.encode(" <|end|>")[0] != 32007  # what stands before them counts
    assert phi3_with({"general.architecture": "llama", "general.name": "tiny"}, kind).encode("<|end|>\n") != [32007]


# refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "wordpiece"}, "tokenizer.ggml.model is 'wordpiece'"),
        ({"model": None}, "tokenizer.ggml.model is None"),
        ({"pre": "some-new-one"}, "tokenizer.ggml.pre is 'some-new-one', which is not supported"),
        ({"pre": 7}, "tokenizer.ggml.pre is 7"),
        ({"tokens": []}, "holds no tokenizer.ggml.tokens"),
        ({"tokens": ["a", 1]}, "no list of the right kind"),
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "'a' twice"),
        ({"token_type": [1, 2]}, "has 2 entries"),
        ({"merges": ["a b"]}, "merge 'a b' does not join"),
        ({"merges": ["ab"]}, "merge 'ab' does not join"),
        ({"bos_token_id": 100_000}, "bos_token_id is 100000"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"add_bos_token": "yes"}, "add_bos_token is 'yes'"),
    ],
)
def test_metadata_that_make_no_tokenizer_are_refused(change: dict[str, Any], message: str) -> None:
    metadata = {**byte_level_metadata(), **{f"tokenizer.ggml.{key}": value for key, value in change.items()}}
    with pytest.raises(CheckpointError, match=message):
        tokenizer_of(metadata)


def test_an_unnamed_pre_tokenizer_is_a_loud_warning() -> None:
    metadata = byte_level_metadata(pre="default")
    with pytest.warns(UserWarning, match="does not say how its tokenizer cuts"):
        tokenizer_of(metadata)
    del metadata["tokenizer.ggml.pre"]
    with pytest.warns(UserWarning, match="does not say how its tokenizer cuts"):
        tokenizer_of(metadata)


def test_mutated_files_raise_checkpoint_errors_only(tmp_path: Path) -> None:
    """Whatever a mutation does to a GGUF file's metadata, tokenizing works or is refused."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in byte_level_metadata("ab abc", pre="llama-bpe").items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    writer.add_key_value("tokenizer.chat_template", "{{ messages[0].content }}", gguf.GGUFValueType.STRING)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    raw = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for _ in range(500):
        path.write_bytes(mutate(raw, rng))
        try:
            checkpoint = open_checkpoint(path)
            tokenizer = Tokenizer.from_checkpoint(checkpoint)
            tokenizer.decode(tokenizer.encode("Hello <|im_end|> wörld 123"))
            ChatTemplate.from_checkpoint(checkpoint).render([{"role": "user", "content": "x"}])
        except CheckpointError:
            refused += 1
        except RequestError:
            continue  # the template itself was hit
    assert 100 < refused < 500
