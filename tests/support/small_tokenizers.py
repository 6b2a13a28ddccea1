"""Small tokenizers of both kinds, made by hand."""

from __future__ import annotations

from typing import Any

from headstart.text.gguf_tokenizer import TokenType, read_gguf_tokenizer
from headstart.text.token_bytes import BYTE_ALPHABET
from headstart.text.tokenizer import Tokenizer

CHARACTER_OF_BYTE = {byte: character for character, byte in BYTE_ALPHABET.items()}


WORDS = "the_ th he_ in er ing ☃ 日本 🎉 \n\n"


def spelled(text: str) -> str:
    """A text as byte-level vocabularies spell it."""
    return "".join(CHARACTER_OF_BYTE[byte] for byte in text.encode())


def byte_level_metadata(words: str = "", pre: str = "gpt-2", **more: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary: all bytes, and every beginning of each word of ``words``.

    "abc" gives the merges a+b and ab+c, so that a word is one token if nothing cuts it.
    """
    tokens = [CHARACTER_OF_BYTE[byte] for byte in range(256)]
    merges = []
    for word in words.split(" "):
        word = spelled(word.replace("_", " "))
        for length in range(2, len(word) + 1):
            merge = f"{word[: length - 1]} {word[length - 1]}"
            if word[:length] not in tokens:
                tokens.append(word[:length])
                merges.append(merge)
    types = [int(TokenType.NORMAL)] * len(tokens)
    for special in ("<|end|>", "<|im_start|>", "<|im_end|>"):
        tokens.append(special)
        types.append(int(TokenType.CONTROL))
    tokens.append("<think>")
    types.append(int(TokenType.USER_DEFINED))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def sentencepiece_metadata(pieces: dict[str, float], **more: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece vocabulary with byte fallback: scored pieces after specials and bytes."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*map(int, kinds), *[int(TokenType.NORMAL)] * len(pieces)],
        "tokenizer.ggml.scores": [0.0] * len(kinds) + list(pieces.values()),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    parts = read_gguf_tokenizer(metadata, source="test.gguf")
    return Tokenizer(parts.backend, parts.special_tokens, parts.eos_token_ids)


def byte_level(words: str = WORDS, **more: Any) -> Tokenizer:
    return tokenizer_of(byte_level_metadata(words, **more))


def sentencepiece(**more: Any) -> Tokenizer:
    words = ["▁", "a", "b", "c", "e", "h", "t", "th", "the", "▁the", "▁a", "ab", "abc", "bc", "▁▁", "日", "本", "☃"]
    return tokenizer_of(sentencepiece_metadata({word: -float(rank) for rank, word in enumerate(words)}, **more))
