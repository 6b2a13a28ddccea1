"""An engine's batch as vLLM keeps it, with a target of a few lines: rows of requests that come, move and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

VOCAB = 64
Target = Callable[[Sequence[int]], int]
"""The token that it says after a text."""


def looping(period: int) -> Target:
    """Says what it said ``period`` tokens ago, but for every eleventh token."""

    def says(tokens: Sequence[int]) -> int:
        place = len(tokens)
        return tokens[place - period] if place % 11 else (tokens[-1] * 7 + place) % VOCAB

    return says


def vllm_config(drafter: object = None, draft_tokens: int = 4, max_length: int = 256) -> Any:
    """What a proposer reads of vLLM's ``VllmConfig``."""
    return SimpleNamespace(
        additional_config={} if drafter is None else {"headstart": drafter},
        speculative_config=SimpleNamespace(num_speculative_tokens=draft_tokens),
        model_config=SimpleNamespace(max_model_len=max_length, get_vocab_size=lambda: VOCAB),
    )


@dataclass
class Row:
    tokens: list[int]
    new: list[int] = field(default_factory=list)
    """Made final by the last pass."""
    guesses: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    """[pass with guesses] how many were right."""
    drafted: list[list[int]] = field(default_factory=list)
    """[pass]"""


class EngineBatch:
    """Rows of requests; ``step`` is one pass over those that are read, and the proposer's turn."""

    def __init__(self, proposer: Any, target: Target, max_length: int = 256) -> None:
        self.proposer, self.target, self.max_length = proposer, target, max_length
        self.rows: list[Row] = []

    def add(self, prompt: Sequence[int]) -> Row:
        self.rows.append(Row(list(prompt)))
        return self.rows[-1]

    def step(self, unread: Sequence[Row] = ()) -> None:
        """``unread``: rows whose prompts are still being read, and that say nothing yet."""
        for row in self.rows:
            row.new = []
            if not any(row is other for other in unread):
                self._verify(row)
        texts = np.zeros((len(self.rows) + 1, self.max_length), dtype=np.int32)
        for place, row in enumerate(self.rows):
            texts[place, : len(row.tokens)] = row.tokens
        lengths = np.array([len(row.tokens) for row in self.rows] + [0], dtype=np.int32)
        said = self.proposer.propose([row.new for row in self.rows], lengths, texts, slot_mappings=None)
        assert len(said) == len(self.rows)
        for row, guesses in zip(self.rows, said, strict=True):
            assert all(isinstance(token, int) and 0 <= token < VOCAB for token in guesses)
            assert len(row.tokens) + len(guesses) < self.max_length or not guesses
            row.guesses = guesses

    def _verify(self, row: Row) -> None:
        if row.guesses:
            row.drafted.append(row.guesses)
        for guess in row.guesses:
            token = self.target(row.tokens)
            row.tokens.append(token)
            row.new.append(token)
            if token != guess:
                break
        else:
            row.new.append(self.target(row.tokens))
            row.tokens.append(row.new[-1])
        if row.guesses:
            row.accepted.append(len(row.new) - 1)
