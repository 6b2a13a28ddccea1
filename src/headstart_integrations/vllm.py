"""Headstart's drafters in vLLM, through its method ``custom_class``.

    vllm serve MODEL --speculative-config \
        '{"method": "custom_class", "model": "headstart_integrations.vllm.Proposer", "num_speculative_tokens": 8}'

The interface is that of ``vllm/v1/spec_decode/custom_class_proposer.py`` and of the V1 runner's
``propose_draft_token_ids`` (vLLM 0.32 and 0.33). vLLM shows tokens alone: no request ids, no states, no wishes of a
request. So sequences are told apart by their tokens, and guesses are chains.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headstart_integrations.hosted import HostedDrafter, HostedSequence, best_path, drafter_of

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

KEY = "headstart"
"""Entry of vLLM's ``additional_config`` that names the drafter."""
_NODES = 64
"""Of a tree at most, before its best path is taken."""
_log = logging.getLogger(__name__)


class Proposer:
    """Guesses for all requests of one vLLM worker.

    The drafter is named by ``--additional-config '{"headstart": "name:option=value"}'`` or by the environment variable
    ``HEADSTART_DRAFTER``. Requests whose tokens are the same so far are interchangeable, as guesses follow from tokens.
    Memory is bounded by vLLM's own batch, and by the drafter's options for what outlives a request.

    Args:
        config: vLLM's ``VllmConfig``.

    Raises:
        ConfigError: there is no such drafter, it needs more than tokens, or it refuses an option.
        CheckpointError: a file that an option names is missing or damaged.
    """

    def __init__(self, config: VllmConfig) -> None:
        more = config.additional_config
        name, options = drafter_of(more.get(KEY) if isinstance(more, Mapping) else None)
        self._max_length = config.model_config.max_model_len
        self._hosted = HostedDrafter(
            name,
            options,
            vocab_size=config.model_config.get_vocab_size(),
            draft_tokens=config.speculative_config.num_speculative_tokens,
            tree_nodes=_NODES,
            tokenizer=_Tokenizer(config.model_config),
        )
        self._followed: dict[int, _Followed] = {}
        self._failed = False
        _log.info("drafter %s guesses for vLLM.", name)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM calls this once; there is no model."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.int32],
        token_ids_cpu: NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Guesses for each request of the batch; an empty list where there are none. Never raises.

        Args:
            sampled_token_ids: [request] tokens that the last pass has made final; empty while a prompt is being read.
            num_tokens_no_spec: [request] tokens of it, those included.
            token_ids_cpu: [request, position] them.
            slot_mappings: not looked at.
        """
        if not self._failed:
            try:
                return self._propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            except Exception:
                self._failed = True
                self._followed.clear()
                _log.exception("Headstart's proposer failed; vLLM goes on without its guesses.")
        return [[] for _ in sampled_token_ids]

    def _propose(
        self, sampled: list[list[int]], lengths: NDArray[np.int32], texts: NDArray[np.int32]
    ) -> list[list[int]]:
        rows = [row for row, new in enumerate(sampled) if new]
        before = self._followed
        self._followed = self._recognised({row: texts[row, : int(lengths[row]) - len(sampled[row])] for row in rows})
        stays = {id(followed) for followed in self._followed.values()}
        # First, so that what they said is known to those that begin.
        for followed in before.values():
            if id(followed) not in stays:
                self._hosted.end(followed.sequence)
        for row in rows:
            if self._followed.get(row) is None:
                prompt = texts[row, : int(lengths[row]) - len(sampled[row])]
                self._followed[row] = _Followed(self._hosted.begin(prompt.tolist()), prompt)
            followed = self._followed[row]
            self._hosted.extend(followed.sequence, sampled[row])
            followed.append(sampled[row])
        # The pass that verifies brings a token of its own, for which there must be room as well.
        rooms = [self._max_length - 1 - int(lengths[row]) for row in rows]
        trees = self._hosted.propose([self._followed[row].sequence for row in rows], rooms)
        guesses: list[list[int]] = [[] for _ in sampled]
        for row, tree in zip(rows, trees, strict=True):
            guesses[row] = best_path(tree)
        return guesses

    def _recognised(self, texts: Mapping[int, NDArray[np.int32]]) -> dict[int, _Followed]:
        """row -> the sequence whose tokens these are, where one is followed. vLLM moves requests between rows."""
        found = {
            row: followed
            for row, text in texts.items()
            if (followed := self._followed.get(row)) is not None and followed.says(text)
        }
        taken = {id(followed) for followed in found.values()}
        free: dict[int, list[_Followed]] = {}
        for followed in self._followed.values():
            if id(followed) not in taken:
                free.setdefault(followed.length, []).append(followed)
        for row, text in texts.items():
            if row not in found:
                same = free.get(len(text), [])
                place = next((place for place, followed in enumerate(same) if followed.says(text)), None)
                if place is not None:
                    found[row] = same.pop(place)
        return found


class _Followed:
    """A sequence, and its tokens in a form that is quickly compared."""

    def __init__(self, sequence: HostedSequence, tokens: NDArray[np.int32]) -> None:
        self.sequence = sequence
        self.length = len(tokens)
        self._tokens = np.empty(2 * self.length + 64, dtype=np.int32)
        self._tokens[: self.length] = tokens

    def says(self, tokens: NDArray[np.int32]) -> bool:
        return self.length == len(tokens) and np.array_equal(self._tokens[: self.length], tokens)

    def append(self, tokens: Sequence[int]) -> None:
        end = self.length + len(tokens)
        if end > len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(end, dtype=np.int32)))
        self._tokens[self.length : end] = tokens
        self.length = end


class _Tokenizer:
    """vLLM's own, loaded when a drafter first has a text to read."""

    def __init__(self, model: ModelConfig) -> None:
        self._model = model

    def encode(self, text: str) -> list[int]:
        from vllm.tokenizers import cached_tokenizer_from_config

        return list(cached_tokenizer_from_config(self._model).encode(text, add_special_tokens=False))
