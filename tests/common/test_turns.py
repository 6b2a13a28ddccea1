"""Turns come in the order in which they were asked for."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from headstart.common.turns import Turns


def test_who_asked_first_is_first_and_who_comes_again_is_last() -> None:
    turns, order = Turns(), []

    def take(name: int) -> None:
        with turns:
            order.append(name)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(8)]
    with turns:
        for count, thread in enumerate(threads):
            thread.start()
            while turns.waiting <= count:
                time.sleep(0.001)
    take(8)
    for thread in threads:
        thread.join()
    assert order == list(range(9))
    assert turns.waiting == 0


def test_an_error_passes_the_turn_on() -> None:
    turns = Turns()
    with pytest.raises(KeyError), turns:
        raise KeyError
    with turns:
        pass


def test_an_interrupted_wait_leaves_the_turn_to_others() -> None:
    turns = Turns()

    def interrupt(*_: object) -> None:
        raise InterruptedError

    def interrupted() -> None:
        while not turns.waiting:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turns:
            held.set()
            done.wait()

    try:
        holder, other = threading.Thread(target=hold), threading.Thread(target=interrupted)
        holder.start()
        held.wait()
        other.start()
        with pytest.raises(InterruptedError), turns:
            pass
        assert turns.waiting == 0
        done.set()
        holder.join()
        other.join()
        with turns:
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
