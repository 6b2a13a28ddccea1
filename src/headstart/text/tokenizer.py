"""Text to token ids and back, for Hugging Face directories and GGUF files alike."""

from __future__ import annotations

import copy
import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import product
from typing import Any

from tokenizers import Tokenizer as Backend

from headstart.errors import CheckpointError, RequestError, require_utf8
from headstart.models.checkpoint import Checkpoint
from headstart.text.directory_tokenizer import read_directory_tokenizer
from headstart.text.gguf_tokenizer import read_gguf_tokenizer
from headstart.text.token_bytes import TokenBytes
from headstart.text.tokenizer_faults import contained, outgrows
from headstart.text.tokenizer_parts import TokenizerParts

_LONG_TEXT = 1 << 12
"""Characters."""
_TRIAL_TEXTS = ("Hello, world: 1 + 1 = 2?\n", *(chr(code) * 40 + "!" for code in (10, *range(32, 127))))
"""What every tokenizer must be able to read; repetitions are where regular expressions run away."""


class Tokenizer:
    """A vocabulary, and the rules that cut text into it.

    Encoding is that of the ``tokenizers`` library (so, of transformers). Decoding is the concatenation of the
    tokens' bytes read as UTF-8, U+FFFD where that is malformed, without transformers' optional clean-up of spaces.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
        name: str = "",
        growth: float = 1.0,
        source: Tokenizer | None = None,
    ) -> None:
        """``special_tokens``: role ("bos_token", ...) -> spelling. ``eos_token_ids``: what ends a
        sequence. ``growth``: bytes that a byte of text may become on its way to tokens. ``source``: what cuts texts for
        an encoder whose vocabulary is another.
        """
        self.name = name
        self.special_tokens: Mapping[str, str] = dict(special_tokens or {})
        """Role -> text, for chat templates."""
        self._backend = backend
        self._growth = growth
        self._backend.no_truncation()  # a tokenizer.json may carry its training set-up
        self._backend.no_padding()
        self._literal: Backend | None = None
        self._lock = threading.Lock()
        self._bytes_of = TokenBytes.of(backend)
        self._bytes: dict[int, bytes] = {}
        self.special_ids: frozenset[int] = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        """Tokens that mark structure; left out of decoded text."""
        bos = self.special_tokens.get("bos_token")
        self.bos_token_id: int | None = None if bos is None else backend.token_to_id(bos)
        self.eos_token_ids: tuple[int, ...] = tuple(eos_token_ids)
        """What ends a sequence."""
        self.for_encoder: Tokenizer = self if source is None else source
        """What cuts texts for the model's encoder, if it has one."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Tokenizer:
        """The tokenizer that belongs to a model.

        Raises:
            CheckpointError: its files are missing, damaged, or of a kind that is not supported.
        """
        path = checkpoint.path

        def refusal(reason: str) -> CheckpointError:
            return CheckpointError(f"the tokenizer of {path} cannot be used ({reason}); fetch the model again.")

        with contained(refusal):
            if checkpoint.kind == "gguf":
                parts = read_gguf_tokenizer(checkpoint.metadata, source=str(path))
            else:
                parts = read_directory_tokenizer(path, checkpoint.metadata)
            tokenizer = cls._of_parts(parts, checkpoint.name)
            for each, text in product({tokenizer, tokenizer.for_encoder}, _TRIAL_TEXTS):
                each._backend.encode(text)
        return tokenizer

    @classmethod
    def _of_parts(cls, parts: TokenizerParts, name: str) -> Tokenizer:
        source = None if parts.source is None else cls._of_parts(parts.source, name)
        return cls(parts.backend, parts.special_tokens, parts.eos_token_ids, name, parts.growth, source)

    def encode(
        self, text: str, add_special_tokens: bool = True, parse_special: bool = True, field: str = "prompt"
    ) -> list[int]:
        """Token ids of a text.

        ``add_special_tokens``: put the begin-of-sequence token in front (and what else this tokenizer adds); leave it
        off for a rendered chat, which brings its own. ``parse_special``: read text that spells a special token as that
        token, as transformers does; without it, such text is ordinary text. ``field``: what a refusal calls the text.

        Raises:
            RequestError: the text holds half of a surrogate pair, so that it has no UTF-8 form; or the model's
                tokenizer fails at it.
        """
        require_utf8(text, field)
        if outgrows(self._growth, text):
            raise RequestError(
                f"the tokenizer may make {self._growth:.3g} bytes of each of the text's {len(text)} characters, which "
                "is too much; give a shorter text.",
                field,
            )
        backend = self._backend if parse_special else self._literal_backend
        with contained(self._failure):
            if len(text) < _LONG_TEXT:
                return list(backend.encode(text, add_special_tokens=add_special_tokens).ids)
            # One text alone keeps every other thread waiting, for seconds if it is long; a batch of one does not.
            (encoding,) = backend.encode_batch([text], add_special_tokens=add_special_tokens)
            return list(encoding.ids)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Ids that no token has (padding rows of an embedding) are empty."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        pieces = [piece for token_id in token_ids if token_id not in skipped and (piece := self.token_bytes(token_id))]
        if pieces:
            pieces[0] = self.without_leading_space(pieces[0])
        return b"".join(pieces).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text that has begun (a special token: its spelling)."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
            known = self._bytes[token_id] = b"" if token is None else self._bytes_of(token)
        return known

    def token_text(self, token_id: int) -> str:
        """One token for display: its bytes as UTF-8, U+FFFD where they are but part of a character."""
        return self.token_bytes(token_id).decode(errors="replace")

    def without_leading_space(self, first: bytes) -> bytes:
        """The first bytes of a text less the space that encoding put in front of it, where this tokenizer does so."""
        return first[1:] if self._bytes_of.leading_spaces and first[:1] == b" " else first

    @cached_property
    def vocabulary(self) -> Mapping[str, int]:
        """Every token's spelling -> id, special tokens included."""
        return self._backend.get_vocab(with_added_tokens=True)

    @cached_property
    def vocab_size(self) -> int:
        """Highest id + 1. A model's embedding may have more rows than that."""
        return max(self.vocabulary.values(), default=-1) + 1

    @property
    def added_tokens(self) -> dict[int, tuple[str, bool]]:
        """Id -> spelling, and whether it is special, of the tokens that are found in a text before it is cut."""
        return {
            token_id: (str(token.content), bool(token.special))
            for token_id, token in self._backend.get_added_tokens_decoder().items()
        }

    @cached_property
    def start(self) -> tuple[int, ...]:
        """What it puts before each text: the begin-of-sequence token, or nothing."""
        first = tuple(self.encode("")[:1])
        return first if first == (self.bos_token_id,) else ()

    def fingerprint(self) -> str:
        """SHA-256 of the vocabulary, 64 hexadecimal digits: equal where every id is spelled alike."""
        record = sorted((token_id, token) for token, token_id in self.vocabulary.items())
        return hashlib.sha256(repr(record).encode(errors="surrogatepass")).hexdigest()

    @property
    def merges(self) -> list[Any]:
        """Pairs of pieces that become one, in their order; none, of a tokenizer that does without."""
        return list(json.loads(self._backend.to_str())["model"].get("merges") or ())

    def compatible_with(self, other: Tokenizer) -> str | None:
        """None where both give every id the same meaning, as a draft model needs; else the first difference. What an
        encoder reads is not looked at."""
        if self.vocabulary != other.vocabulary:
            return _first_difference(self.vocabulary, other.vocabulary)
        different = self.special_ids ^ other.special_ids
        if different:
            token_id = min(different)
            spelling = self._backend.id_to_token(token_id)
            special, ordinary = ("first", "second") if token_id in self.special_ids else ("second", "first")
            return f"token {token_id} ({spelling!r}) is special in the {special} and ordinary in the {ordinary}"
        return None

    def _failure(self, reason: str) -> RequestError:
        of = f" of {self.name}" if self.name else ""
        return RequestError(f"the tokenizer{of} fails at this text ({reason}); give another text or model.", "prompt")

    @property
    def _literal_backend(self) -> Backend:
        with self._lock:
            if self._literal is None:
                self._literal = copy.deepcopy(self._backend)
                self._literal.encode_special_tokens = True
            return self._literal


def _first_difference(first: Mapping[str, int], second: Mapping[str, int]) -> str:
    by_id = [{token_id: token for token, token_id in vocabulary.items()} for vocabulary in (first, second)]
    for token_id in sorted(by_id[0].keys() | by_id[1].keys()):
        one, other = by_id[0].get(token_id), by_id[1].get(token_id)
        if one != other:
            return f"token {token_id} is {one!r} in the first vocabulary and {other!r} in the second"
    return f"the vocabularies spell {len(first)} and {len(second)} tokens"
