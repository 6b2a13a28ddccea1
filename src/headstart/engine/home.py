"""The process that an engine was made in: a fork of it lacks the threads that compute."""

from __future__ import annotations

import os

import torch

from headstart.errors import ConfigError


class Home:
    """Remembers the process that it is made in."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def require(self, threads: int | None = None) -> None:
        """Refuse to go on in a fork, where whoever waits for one of ``threads`` would wait for ever; None: of those
        that compute a pass, which are none where the caller computes alone.

        Raises:
            ConfigError: this is a fork.
        """
        if os.getpid() != self._process and (torch.get_num_threads() > 1 if threads is None else threads > 0):
            raise ConfigError(
                "this process was forked from the one that loaded the model, and lacks its threads; load the model in "
                "this process, or start processes by spawn (multiprocessing.set_start_method('spawn'))."
            )
