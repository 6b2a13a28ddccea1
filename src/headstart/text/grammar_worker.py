"""A process that compiles grammars for ``grammar_trial``; run as a script with the descriptor of its connection.

It imports nothing of ours, so that it starts quickly and stays small.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import llguidance

MOST_BYTES = 2 << 30
"""Address space of the process."""


class Spelling:
    """A tokenizer as llguidance wants to see it (``llguidance.TokenizerWrapper``), for what never reads a text."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        self.__dict__.update(vocabulary)

    def __call__(self, text: str) -> list[int]:
        return []


def main(connection: Connection) -> None:
    """Answer each grammar with what is wrong with it, or nothing; one that takes too long ends the process."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES if most < 0 else min(MOST_BYTES, most), most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)
    vocabulary, ends = connection.recv()
    spelling: Any = Spelling(vocabulary)
    tokens = llguidance.LLTokenizer(spelling, n_vocab=len(vocabulary["tokens"]), eos_token=ends)
    while True:
        try:
            grammar, limits, seconds = connection.recv()
        except EOFError:
            return
        # The processor's time, so that a busy machine refuses nothing that an idle one takes.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=llguidance.LLParserLimits(**limits))
        if not matcher.is_error():
            matcher.compute_bitmask()
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(matcher.get_error() if matcher.is_error() else "")


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
