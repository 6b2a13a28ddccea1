"""Threads get a fair lock in the order in which they asked for it."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from headstart.common.fair_lock import FairLock


def test_who_asked_first_is_first_and_who_comes_again_is_last() -> None:
    lock, order = FairLock(), []

    def take(name: int) -> None:
        with lock:
            order.append(name)

    threads = [threading.Thread(target=take, args=(i,)) for i in range(8)]
    with lock:
        for count, thread in enumerate(threads):
            thread.start()
            while lock.waiting <= count:
                time.sleep(0.001)
    take(8)
    for thread in threads:
        thread.join()
    assert order == list(range(9))
    assert lock.waiting == 0


def test_an_error_passes_the_turn_on() -> None:
    lock = FairLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    with lock:
        pass


def test_an_interrupted_wait_leaves_the_turn_to_others() -> None:
    lock = FairLock()

    def interrupt(*_: object) -> None:
        raise InterruptedError

    def interrupted() -> None:
        while not lock.waiting:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    try:
        holder, other = threading.Thread(target=hold), threading.Thread(target=interrupted)
        holder.start()
        held.wait()
        other.start()
        with pytest.raises(InterruptedError), lock:
            pass
        assert lock.waiting == 0
        done.set()
        holder.join()
        other.join()
        with lock:
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
