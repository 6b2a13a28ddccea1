"""Between a target and a draft model whose tokenizer is another one (Timor et al. 2025, arXiv:2502.05202).

Two ways lead from the draft's tokens to guesses, both exact:

- *by tokens* (the paper's token-level intersection): the draft's law is cut to the tokens that both vocabularies hold
  and renormalised. It is a law over the target's tokens then, which draws come from and which verification is told.
- *by strings*: what the draft writes becomes text, and the target's tokenizer cuts it. Such guesses are point masses:
  no law of theirs is known, and none is needed.

The draft model reads the sequence's text in its own tokens, cut anew each round: what is at the end of a text may be
cut otherwise when the text goes on. Its cache keeps what stayed the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from headstart.drafting.context import TextEncoder


@runtime_checkable
class SpellingTokenizer(TextEncoder, Protocol):
    """A tokenizer that can tell what its tokens spell."""

    special_ids: frozenset[int]
    """Tokens that mark structure."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text that has begun; empty where there is none."""
        ...

    def without_leading_space(self, first: bytes) -> bytes:
        """The first bytes of a text less the space that encoding put in front of it."""
        ...


class Translation:
    """What two vocabularies have in common, and how a text in the one is cut by the other.

    Args:
        target: the target's tokenizer.
        draft: the draft model's.
        target_size: of the target's logits.
        draft_size: of the draft model's.
    """

    def __init__(self, target: SpellingTokenizer, draft: SpellingTokenizer, target_size: int, draft_size: int) -> None:
        self._target, self._draft = target, draft
        self._target_size = target_size
        pairs = _common(target, draft, target_size, draft_size)
        self.draft_ids = torch.tensor([*pairs.values()], dtype=torch.int64)
        """int64 [common] ids of the draft model."""
        self.target_ids = torch.tensor([*pairs], dtype=torch.int64)
        """int64 [common] what they are to the target."""
        self._to_draft = pairs
        known = sum(bool(target.token_bytes(token)) for token in range(min(target.vocab_size, target_size)))
        self.share = len(pairs) / max(known, 1)
        """Of the target's tokens, those that both have."""

    def to_draft(self, tokens: Sequence[int]) -> list[int] | None:
        """A sequence of the target's in the draft's tokens; None where it ends inside a character."""
        text = self._text(tokens)
        return None if text is None else self._draft.encode(text)

    def draft_id(self, token: int) -> int:
        """A token of the target's for the draft model; of one that it lacks, any."""
        return self._to_draft.get(token, 0)

    def logits(self, logits: Tensor) -> Tensor:
        """[draft vocab] of the draft model -> [vocab] of the target's tokens, -inf for those that it lacks.

        A softmax of them is the draft's law under the condition that it says a common token.
        """
        translated = logits.new_full((self._target_size,), -torch.inf)
        translated[self.target_ids] = logits[self.draft_ids]
        return translated

    def to_target(self, tokens: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """What the draft wrote behind a sequence, in the target's tokens.

        Args:
            tokens: the sequence, in the target's.
            drafted: what follows, in the draft's; it ends where it says a token that marks structure.
        """
        written = b""
        for token in drafted:
            if token in self._draft.special_ids or token in self._draft.eos_token_ids:
                break
            written += self._draft.token_bytes(token)
        text = written.decode(errors="ignore")
        found = self._behind(tokens, text)
        guesses, left = [], text.encode()
        for token in found:
            spelled = self._target.token_bytes(token)
            if not spelled or not left.startswith(spelled) or token >= self._target_size:
                break
            left = left.removeprefix(spelled)
            guesses.append(token)
        return guesses

    def _behind(self, tokens: Sequence[int], text: str) -> list[int]:
        """The target's tokens for a text that stands behind others: cut together with the last of those, lest a
        tokenizer puts a space before what it takes for the beginning of a text."""
        before = [token for token in tokens[-1:] if token not in self._target.special_ids]
        spelled = self._target.without_leading_space(b"".join(map(self._target.token_bytes, before)))
        with suppress(UnicodeDecodeError):
            cut = self._ordinary(spelled.decode() + text)
            if before and cut[:1] == before:
                return cut[1:]
        return self._ordinary(self._target.without_leading_space(text.encode()).decode())

    def _ordinary(self, text: str) -> list[int]:
        """A text's tokens without those that mark structure, as that of its beginning."""
        return [token for token in self._target.encode(text) if token not in self._target.special_ids]

    def _text(self, tokens: Sequence[int]) -> str | None:
        """None where it ends inside a character; what is malformed elsewhere is replaced."""
        begun = tokens[1:] if tokens and tokens[0] == self._target.bos_token_id else tokens
        pieces = [*map(self._target.token_bytes, begun)]
        if pieces:
            pieces[0] = self._target.without_leading_space(pieces[0])
        spelled = b"".join(pieces)
        try:
            return spelled.decode()
        except UnicodeDecodeError as error:
            ends_inside = error.end == len(spelled) and error.reason == "unexpected end of data"
            return None if ends_inside else spelled.decode(errors="replace")


def _common(target: SpellingTokenizer, draft: SpellingTokenizer, target_size: int, draft_size: int) -> dict[int, int]:
    """The target's id -> the draft's, of tokens that spell the same, and of what ends a text in both."""
    spelled = _spellings(draft, draft_size)
    pairs = {token: spelled[key] for key, token in _spellings(target, target_size).items() if key in spelled}
    ends = [
        next((token for token in each.eos_token_ids if token < size), None)
        for each, size in ((target, target_size), (draft, draft_size))
    ]
    if ends[0] is not None and ends[1] is not None and ends[0] not in pairs and ends[1] not in pairs.values():
        pairs[ends[0]] = ends[1]
    return pairs


def _spellings(tokenizer: SpellingTokenizer, size: int) -> dict[tuple[bool, bytes], int]:
    """(Whether it marks structure, its bytes) -> id. Of tokens that spell the same, the last: what stands for a byte
    that has no token of its own comes first in a vocabulary."""
    return {
        (token in tokenizer.special_ids, spelled): token
        for token in range(min(tokenizer.vocab_size, size))
        if (spelled := tokenizer.token_bytes(token))
    }
