"""Headstart's drafters in SGLang, as the speculative algorithm ``HEADSTART``.

    HEADSTART_DRAFTER=suffix python -m sglang.launch_server --model-path MODEL --speculative-algorithm HEADSTART

SGLang calls ``register`` in each of its processes (entry point group ``sglang.srt.plugins``). The algorithm is SGLang's
own NGRAM but for where guesses come from: a worker of that kind asks its corpus for one tree a request, and here the
corpus is a drafter. Read against SGLang 0.5.23 (``speculative/ngram_worker.py``, ``cpp_ngram/ngram_corpus.py``,
``speculative/spec_registry.py``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from headstart.passes.draft_tree import DraftTree
from headstart_integrations.hosted import HostedDrafter, HostedSequence, drafter_of

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

ALGORITHM = "HEADSTART"
_log = logging.getLogger(__name__)


def register() -> None:
    """Make the algorithm known to this process of SGLang."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class Algorithm(CustomSpecAlgo):  # type: ignore[misc]
        """NGRAM in everything but its name and its worker."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: ServerArgs) -> None:
            SpeculativeAlgorithm.NGRAM.handle_server_args(server_args)

    SpeculativeAlgorithm.register(ALGORITHM, supports_overlap=True, spec_class=Algorithm)(_worker_class)


def _worker_class(server_args: ServerArgs) -> type:
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    class Worker(NGRAMWorker):  # type: ignore[misc]
        """Verifies what a drafter guesses."""

        def __init__(self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: Any) -> None:
            super().__init__(server_args, gpu_id, nccl_port, target_worker)
            name, options = drafter_of(None)
            guesses = self.draft_token_num - 1
            hosted = HostedDrafter(
                name,
                options,
                vocab_size=target_worker.model_runner.model_config.vocab_size,
                draft_tokens=guesses,
                tree_nodes=guesses,
                tokenizer=_Tokenizer(target_worker.tokenizer),
            )
            self.ngram_corpus = DrafterCorpus(hosted, self.draft_token_num)
            # The corpus is shown so many last tokens of a request: all of them.
            self.max_trie_depth = sys.maxsize

    return Worker


class DrafterCorpus:
    """A drafter behind the interface of SGLang's ``NgramCorpus``.

    Args:
        hosted: the drafter.
        rows: of every request in a pass: its last token, and guesses. What a drafter leaves free is filled up with
            guesses of token 0, as SGLang does.
    """

    def __init__(self, hosted: HostedDrafter, rows: int) -> None:
        self._hosted = hosted
        self._rows = rows
        self._followed: dict[str, HostedSequence] = {}
        self._failed = False

    def batch_get(
        self, req_ids: Sequence[str], batch_tokens: Sequence[list[int]], total_lens: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """One tree for each request. Never raises.

        Args:
            req_ids: their names.
            batch_tokens: [request] all of its tokens so far.
            total_lens: [request] how many these are.

        Returns:
            [request * row] tokens, a request's last one first; [request * row * row] whether a row sees another: itself
            and those above it.
        """
        trees = [DraftTree.empty()] * len(req_ids)
        if not self._failed:
            try:
                sequences = [self._caught_up(name, text) for name, text in zip(req_ids, batch_tokens, strict=True)]
                trees = self._hosted.propose(sequences, [self._rows - 1] * len(sequences))
            except Exception:
                self._failed = True
                self._followed.clear()
                _log.exception("Headstart's drafter failed; SGLang goes on without its guesses.")
        rows = self._rows
        tokens = np.zeros((len(trees), rows), dtype=np.int64)
        sees = np.zeros((len(trees), rows, rows), dtype=np.int64)
        for place, (text, tree) in enumerate(zip(batch_tokens, trees, strict=True)):
            tokens[place, 0] = text[-1]
            tokens[place, 1 : len(tree) + 1] = tree.tokens
            sees[place] = visibility(tree, rows)
        return tokens.ravel(), sees.ravel()

    def erase_match_state(self, req_ids: Iterable[str]) -> None:
        """These requests have left the batch."""
        for name in req_ids:
            sequence = self._followed.pop(name, None)
            if sequence is not None:
                self._hosted.end(sequence)

    def reset(self) -> None:
        """SGLang has flushed its caches: all requests are gone."""
        self.erase_match_state(list(self._followed))

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Nothing: a drafter learns a request's tokens when it is asked to go on from them."""

    def synchronize(self) -> None:
        """Nothing: there is no other thread."""

    @property
    def remaining_token_budget(self) -> int:
        """Of external corpora: none."""
        return 0

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> NoReturn:
        """Refused: SGLang's external corpora belong to its own n-grams.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"corpus {corpus_id!r:.60} is not loaded: with --speculative-algorithm {ALGORITHM} a text to guess from is "
            "an option of a drafter, as in HEADSTART_DRAFTER=rest:texts=FILE."
        )

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Nothing was loaded."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Nothing was loaded."""

    def list_external_corpora(self) -> dict[str, int]:
        """None."""
        return {}

    def _caught_up(self, name: str, text: list[int]) -> HostedSequence:
        """A request's sequence, told all of its tokens; one whose tokens are others than those known is begun anew."""
        sequence = self._followed.get(name)
        known = 0 if sequence is None else len(sequence.tokens)
        if sequence is None or not known < len(text) or text[:known] != sequence.tokens:
            self.erase_match_state([name])
            known = len(text) - 1
            sequence = self._followed[name] = self._hosted.begin(text[:known])
        self._hosted.extend(sequence, text[known:])
        return sequence


def visibility(tree: DraftTree, rows: int) -> NDArray[np.int64]:
    """[row, row] 1 where a row sees another: row 0 is the root, row i + 1 node i; rows beyond the tree are children of
    the root."""
    sees = np.eye(rows, dtype=np.int64)
    sees[:, 0] = 1
    for node, parent in enumerate(tree.parents.tolist()):
        sees[node + 1] |= sees[parent + 1]
    return sees


class _Tokenizer:
    """SGLang's, which may be left out there and is only read by drafters that read texts."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))
