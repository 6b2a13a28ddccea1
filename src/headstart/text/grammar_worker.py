"""A process that compiles grammars for ``grammar_trial``; run as a script with the descriptor of its connection.

It imports little of ours, so that it starts quickly and stays small. Each grammar is tried in a fork of it: one that
takes too long ends the fork alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import llguidance

from headstart.errors import RequestError
from headstart.text.bounded_process import address_space, answer, limit_memory
from headstart.text.grammar_source import closing_of, grammar_source

MORE_BYTES = 256 << 20
"""Address space that a grammar may take."""
STACK_BYTES = 4 << 20
"""Of the thread that compiles: half of what threads have that do so again in earnest."""


class Spelling:
    """A tokenizer as llguidance wants to see it (``llguidance.TokenizerWrapper``), for what never reads a text."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        self.__dict__.update(vocabulary)

    def __call__(self, text: str) -> list[int]:
        return []


def main(connection: Connection) -> None:
    """Answer each structure with what is wrong with it, or nothing; why it is refused, or nothing; and its grammar.
    Answers with null where it took too long or too much memory."""
    os.nice(5)
    vocabulary, ends, limits = connection.recv()
    spelling: Any = Spelling(vocabulary)
    tokens = llguidance.LLTokenizer(spelling, n_vocab=len(vocabulary["tokens"]), eos_token=ends)
    while True:
        try:
            wanted, seconds = connection.recv()
        except EOFError:
            return
        child = os.fork()
        if not child:
            try:
                _answer(connection, tokens, wanted, llguidance.LLParserLimits(**limits), seconds)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            answer(connection, None, "", "")


def _answer(connection: Connection, tokens: Any, wanted: Any, limits: Any, seconds: float) -> None:
    limit_memory(address_space() + STACK_BYTES + MORE_BYTES)
    # The processor's time, so that a busy machine refuses nothing that an idle one takes.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    said: list[tuple[str, str, str]] = []
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: said.append(_tried(tokens, wanted, limits)))
    thread.start()
    thread.join()
    signal.setitimer(signal.ITIMER_PROF, 0)
    answer(connection, *said[0])


def _tried(tokens: Any, wanted: Any, limits: Any) -> tuple[str, str, str]:
    complaint = grammar = ""
    for closing in closing_of(wanted):
        try:
            grammar = grammar_source(llguidance, wanted, closing)
        except RequestError as error:
            return "", str(error), ""
        except ValueError as error:
            return str(error), "", ""
        matcher = llguidance.LLMatcher(tokens, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        complaint = matcher.get_error() if matcher.is_error() else ""
        if not complaint:
            break
    return complaint, "", grammar


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
