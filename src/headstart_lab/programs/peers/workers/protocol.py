"""What every worker shares: one JSON object a line on stdin and stdout, and nothing else there.

Runs in the peer's own environment, so it imports the standard library alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Protocol


class OnToken(Protocol):
    """Called when a token is out."""

    def __call__(self, seconds: float | None = None) -> None:
        """``seconds``: since the request, where the peer itself tells; None: now."""


Decode = Callable[[list[int], int, OnToken], list[int]]
"""(prompt, count, on_token) -> ``count`` token ids, decoded greedily past any end; the first calls ``on_token``."""


def arguments() -> argparse.Namespace:
    """The command line of a worker: the model file, a directory for what it derives from it, and threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-context", type=int, required=True)
    return parser.parse_args()


def serve(load: Callable[[argparse.Namespace], dict[str, Decode]], packages: Iterable[str], weights: str) -> None:
    """Load the peer, say what it offers, then decode what is asked for until stdin ends.

    Args:
        load: from the command line to the decoding modes by name.
        packages: whose versions are reported.
        weights: in a few words, what the peer makes of the model file.
    """
    # Libraries print what they like; the protocol keeps the real stdout for itself.
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    modes = load(arguments())
    hello = {"modes": list(modes), "versions": {name: version(name) for name in packages}, "weights": weights}
    print(json.dumps(hello), file=channel)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = _timed(modes[request["mode"]], request["tokens"], request["count"])
        except Exception as error:  # whatever a peer raises is reported, and the next request is served
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=channel)


def _timed(decode: Decode, prompt: list[int], count: int) -> dict[str, object]:
    first: list[float] = []

    def on_token(seconds: float | None = None) -> None:
        if not first:
            first.append(time.perf_counter() - start if seconds is None else seconds)

    start = time.perf_counter()
    tokens = decode(prompt, count, on_token)
    end = time.perf_counter()
    return {
        "tokens": [int(token) for token in tokens],
        "seconds": end - start,
        "first_seconds": first[0] if first else None,
    }
