"""The engine on a thread of its own: requests come in and pieces of text go out, for asyncio on the other side."""

from __future__ import annotations

import asyncio
import atexit
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

import numpy as np

from headstart.common.memory import NoRoomError, address_space_left, is_lack_of_memory, readable
from headstart.engine.home import Home
from headstart.engine.sequence import Sequence as EngineSequence
from headstart.entrypoints.llm import LLM
from headstart.entrypoints.prompts import EncodedPrompt, encoded
from headstart.entrypoints.request import Sample, StreamPiece
from headstart.errors import HeadstartError, RequestError
from headstart.models.config import ModelConfig
from headstart.passes.batch import EncoderInput
from headstart.sampling.params import SamplingParams
from headstart.text.tokenizer import Tokenizer
from headstart_server.watchdog import Watchdog

_REHEARSAL_TOKENS = 32
"""Of the prompt, and of the output, that is decoded before the first request."""
_SPARE_BYTES = 256 << 20
"""Memory that must be left after that: for what requests bring, and for libraries that end the process where they
cannot have a little."""
_log = logging.getLogger(__name__)


class BusyError(HeadstartError):
    """The queue is full; ask again later."""


class ClosedError(HeadstartError):
    """The engine ends and takes no more requests."""


class Answer:
    """The samples of one request; iterate once to get its pieces, as rounds commit them."""

    def __init__(self, samples: Sequence[Sample], loop: asyncio.AbstractEventLoop, drafter: str | None) -> None:
        self.samples = list(samples)
        self.drafter = drafter
        self.submitted = time.perf_counter()
        self.last_pieces = [self.submitted] * len(self.samples)
        """[sample] when its last piece came."""
        self.deadline: float | None = None
        self.expired = False
        """Whether the request took longer than allowed."""
        self.cut_off = False
        """Whether it ended because the engine was stopped."""
        self.counted: set[int] = set()
        """Indices of samples that have left the engine and are in the metrics."""
        self.loop = loop
        """The reader's."""
        self.pieces: asyncio.Queue[StreamPiece] = asyncio.Queue()
        """What rounds added; for the reader's thread."""
        self._accepted: asyncio.Future[None] = loop.create_future()

    @property
    def out_of_memory(self) -> bool:
        """Whether it ended because memory could not be had."""
        return any(sample.sequence.out_of_memory for sample in self.samples)

    async def accepted(self) -> None:
        """Wait until the engine has taken the request.

        Raises:
            RequestError: the request can never be served.
        """
        await self._accepted

    async def __aiter__(self) -> AsyncIterator[StreamPiece]:
        unfinished = len(self.samples)
        while unfinished:
            piece = await self.pieces.get()
            unfinished -= piece.finish_reason is not None
            yield piece

    def accept(self) -> None:
        """The engine has taken the request. This and ``refuse`` are called on the engine's thread."""
        _call(self.loop, lambda: self._settle(None))

    def refuse(self, error: RequestError) -> None:
        """The engine cannot take the request."""
        _call(self.loop, lambda: self._settle(error))

    def _settle(self, error: RequestError | None) -> None:
        if self._accepted.done():  # the reader has given up
            return
        if error is None:
            self._accepted.set_result(None)
        else:
            self._accepted.set_exception(error)


class AsyncEngine:
    """Runs the engine of ``llm`` while there is work; nothing else may touch that engine meanwhile.

    Args:
        llm: the model and its engine.
        max_waiting: samples that may wait besides those that are being decoded.
        max_seconds: longest wall time of a request, waiting included; None: no limit.
    """

    def __init__(self, llm: LLM, max_waiting: int = 64, max_seconds: float | None = None) -> None:
        self.llm = llm
        self.max_seconds = max_seconds
        self._engine = llm.engine
        self._home = Home()
        # Requests of several callers share it: what a drafter raises costs guesses, and ends nobody's work.
        self._engine.drafters.tolerant = True
        self._max_open = llm.engine.limits.max_sequences + max_waiting
        self._open = 0
        self._lock = threading.Lock()
        self._closing = self._stopping = False
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._answers: list[Answer] = []
        self._thread = threading.Thread(target=self._run, name="headstart-engine", daemon=True)
        self._watchdog = Watchdog(lambda: self._engine.work)

    def start(self) -> None:
        """Begin to serve."""
        # A process must not end while the thread computes: the interpreter cannot stop it inside compiled code.
        atexit.register(self.stop)
        self._thread.start()
        self._watchdog.start()

    def rehearse(self) -> None:
        """Decode a little on the engine's thread, so that what is allocated with the first request is there before it.

        Raises:
            NoRoomError: memory cannot be had, or too little is left for requests.
        """
        # Before, too: some libraries end the process where they lack the memory to begin on a new thread.
        _require_spare()
        done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._commands.put(lambda: done.put(self._rehearsed()))
        error = done.get()
        if error is not None:
            if is_lack_of_memory(error):
                raise _no_memory("none is") from error
            raise error
        _require_spare()

    async def submit(self, samples: Sequence[Sample]) -> Answer:
        """Queue the samples of a request and wait until the engine has looked at it.

        Raises:
            BusyError: too many samples are waiting already.
            ClosedError: the engine ends.
            ConfigError: this process was forked from the engine's.
            RequestError: the request can never be served.
        """
        answer = self.prepared(samples)
        await self.enter(answer)
        return answer

    def prepared(self, samples: Sequence[Sample]) -> Answer:
        """The answer of a request that has not been queued yet.

        Raises:
            RequestError: it names no drafter of this engine.
        """
        drafter = self._engine.drafters.name_for(samples[0].sequence)
        return Answer(samples, asyncio.get_running_loop(), drafter)

    async def enter(self, answer: Answer, begun: float | None = None) -> None:
        """Queue a prepared answer; as ``submit``. ``begun``: when (``time.perf_counter``) the request began that it is
        a part of; None: with it."""
        self._home.require(threads=1)
        if self.max_seconds is not None:
            answer.deadline = (answer.submitted if begun is None else begun) + self.max_seconds
        with self._lock:
            if self._closing:
                raise ClosedError("no more requests are taken: this engine ends.")
            if self._open + len(answer.samples) > self._max_open:
                raise BusyError(f"{self._open} samples are being served or wait; try again later.")
            self._open += len(answer.samples)
        self._commands.put(lambda: self._add(answer))
        try:
            await answer.accepted()
        except asyncio.CancelledError:
            self.cancel(answer)
            raise

    def cancel(self, answer: Answer) -> None:
        """End a request, however far it is. Finished ones stay as they are."""
        self._commands.put(lambda: self._abort(answer, None))

    def close(self) -> None:
        """Take no more requests, finish those in progress, end the thread."""
        with self._lock:
            self._closing = True
        self._commands.put(lambda: None)
        if self._thread.is_alive():
            self._thread.join()
        atexit.unregister(self.stop)

    def stop(self) -> None:
        """Take no more requests, cut off those in progress after the pass that they are in, end the thread."""
        self._stopping = True
        self.close()

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _waited(self, first: bool, seconds: float) -> None:
        """A reader waited for a piece; ``first``: its first one. For those who count."""

    def _finished(self, sequence: EngineSequence, drafter: str | None) -> None:
        """A sequence has left the engine. For those who count."""

    def _run(self) -> None:
        try:
            while not (self._stopping or (self._closing and self._engine.idle and self._commands.empty())):
                self._take_commands()
                self._expire()
                self._step()
                self._deliver()
        finally:
            self._watchdog.stop()
            self._closing = True
            for answer in self._answers:
                answer.cut_off = self._stopping
            self._fail_all("the engine has stopped.")

    def _take_commands(self) -> None:
        """If there is no work, sleep until there is."""
        if self._engine.idle and not self._closing:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _step(self) -> None:
        try:
            self._engine.step()
        except Exception:
            # The engine ends whose fault it was. What comes out of it leaves nothing that others could go on from.
            _log.exception("the engine failed; the requests that were decoding end with an error.")
            self._fail_all("the pass that computed this request failed.", only_running=True)

    def _rehearsed(self) -> Exception | None:
        """What went wrong; None: nothing."""
        length = max(1, min(_REHEARSAL_TOKENS, (self._engine.limits.max_context - 1) // 2))
        prompt = _trial_prompt(self.llm.model.config, self.llm.get_tokenizer(), length)
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, seed=0)
        samples: list[Sample] = []
        try:
            samples = self.llm.samples(prompt, params, cache_salt="headstart rehearsal")
            for sample in samples:
                self._engine.add(sample.sequence)
            while not all(sample.sequence.finished for sample in samples):
                self._engine.step()
        except Exception as error:
            return error
        finally:
            for sample in samples:
                self._engine.abort(sample.sequence)
        return None

    def _add(self, answer: Answer) -> None:
        try:
            for sample in answer.samples:
                self._engine.add(sample.sequence)
        except RequestError as error:
            for sample in answer.samples:
                self._engine.abort(sample.sequence)
            with self._lock:
                self._open -= len(answer.samples)
            answer.refuse(error)
            return
        self._answers.append(answer)
        answer.accept()

    def _abort(self, answer: Answer, reason: str | None) -> None:
        for sample in answer.samples:
            if reason is not None and not sample.sequence.finished:
                sample.sequence.fail(reason)
            self._engine.abort(sample.sequence)
        self._deliver()

    def _expire(self) -> None:
        now = time.perf_counter()
        for answer in list(self._answers):
            if answer.deadline is not None and now > answer.deadline:
                answer.expired = True
                self._abort(answer, f"the request took longer than the {self.max_seconds:g} seconds allowed.")

    def _fail_all(self, reason: str, only_running: bool = False) -> None:
        for answer in self._running_answers() if only_running else list(self._answers):
            self._abort(answer, reason)

    def _running_answers(self) -> list[Answer]:
        return [answer for answer in self._answers if any(self._engine.runs(each.sequence) for each in answer.samples)]

    def _deliver(self) -> None:
        now = time.perf_counter()
        # Each call wakes a reader's thread: one for all that a step brought.
        told: dict[asyncio.AbstractEventLoop, list[tuple[Answer, StreamPiece]]] = {}
        for answer in list(self._answers):
            for place, sample in enumerate(answer.samples):
                piece = sample.next_piece()
                if piece is None:
                    continue
                if piece.token_ids:
                    first = len(piece.token_ids) == sample.sequence.num_output
                    self._waited(first, now - answer.last_pieces[place])
                    answer.last_pieces[place] = now
                if piece.finish_reason is not None:
                    answer.counted.add(place)
                    self._finished(sample.sequence, answer.drafter)
                    with self._lock:
                        self._open -= 1
                told.setdefault(answer.loop, []).append((answer, piece))
            if len(answer.counted) == len(answer.samples):
                self._answers.remove(answer)
        for loop, pieces in told.items():
            _call(loop, partial(_put, pieces))


def _call(loop: asyncio.AbstractEventLoop, action: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:  # it is closed: nobody is listening
        _log.debug("a piece had no reader left.")


def _put(told: Sequence[tuple[Answer, StreamPiece]]) -> None:
    for answer, piece in told:
        answer.pieces.put_nowait(piece)


def _require_spare() -> None:
    left = address_space_left()
    if left is not None and left < _SPARE_BYTES:
        raise _no_memory(f"{readable(left)} are")


def _no_memory(left: str) -> NoRoomError:
    return NoRoomError(
        f"serving needs {readable(_SPARE_BYTES)} of memory beside the model, but {left} left; raise this "
        "process's limit (ulimit -v), or give a smaller model or cache_tokens."
    )


def _trial_prompt(config: ModelConfig, tokenizer: Tokenizer, length: int) -> EncodedPrompt:
    """A prompt of so many tokens that any model can read, or of silence."""
    encoder = config.encoder
    if encoder is None:
        return encoded([0] * length, tokenizer, False)
    source = EncoderInput((0,) * min(length, encoder.max_positions))
    if encoder.mel_bins is not None:
        source = EncoderInput.of_features(np.zeros((encoder.mel_bins, 2 * encoder.max_positions), np.float32))
    return EncodedPrompt("", [encoder.start_token_id or 0], source)
