"""A process that renders chat templates for ``template_process``; run as a script with the descriptor of its
connection."""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection

from headstart.text.bounded_process import address_space, answer, limit_memory
from headstart.text.sandbox import checked, compile_template, render

MORE_BYTES = 512 << 20
"""Address space beyond what the process begins with."""


def main(connection: Connection) -> None:
    """Compile a template, or render one: answer with what is wrong, and with the text."""
    limit_memory(address_space() + MORE_BYTES)
    (seconds,) = connection.recv()
    while True:
        try:
            source, variables = connection.recv()
        except EOFError:
            return
        wrong, text = "", ""
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            template = compile_template(source)
            if variables is not None:
                text = render(template, checked(variables))
        except (RecursionError, MemoryError):
            wrong = "it is nested too deeply or wants too much memory"
        except Exception as error:  # whatever a program that came with a download can raise
            wrong = str(error).rstrip(".") or type(error).__name__
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer(connection, wrong, text)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
