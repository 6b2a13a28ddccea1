"""Structures are read and compiled in a process of their own first, which can be ended: in ours, a costly one could
not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headstart.common.fair_lock import FairLock
from headstart.errors import RequestError
from headstart.sampling.structured import StructuredOutputsParams
from headstart.text.bounded_process import BoundedProcess, EndedError

_WORKER = Path(__file__).with_name("grammar_worker.py")
_SECONDS = (0.1, 1.0)
"""Processor time that a structure may take, up to its first mask: at first, and once more where that is too little."""


class TooCostlyError(Exception):
    """The structure takes more time or memory than it may."""


class GrammarTrial:
    """Tries structures, one at a time; its process starts with the first one, and ends with this object.

    Args:
        vocabulary: the attributes of a tokenizer that llguidance reads.
        end_tokens: what ends an output.
        limits: of llguidance's parser.
    """

    def __init__(
        self, vocabulary: Mapping[str, object], end_tokens: Sequence[int], limits: Mapping[str, object]
    ) -> None:
        self._process = BoundedProcess(_WORKER, (dict(vocabulary), list(end_tokens), dict(limits)))
        self._costly = FairLock()
        """Held for the second try: costly structures wait for each other, and others for one of them at most."""

    def grammar(self, wanted: StructuredOutputsParams) -> tuple[str, str]:
        """What is wrong with a structure, empty if nothing is, and its grammar. Waits for its turn.

        Raises:
            RequestError: it cannot be read.
            TooCostlyError: it takes too long, or too much memory.
            OSError: no process can be started.
        """
        quick, patient = _SECONDS
        answer = self._tried(wanted, quick)
        if answer is None:
            with self._costly:
                answer = self._tried(wanted, patient)
        if answer is None:
            raise TooCostlyError
        complaint, refusal, grammar = answer
        if refusal:
            raise RequestError(refusal, "structured_outputs")
        return complaint, grammar

    def _tried(self, wanted: StructuredOutputsParams, seconds: float) -> tuple[str, str, str] | None:
        """None: it took too much."""
        try:
            complaint, refusal, grammar = self._process.ask(wanted, seconds)
        except EndedError:
            return None
        return None if complaint is None else (complaint, refusal, grammar)
