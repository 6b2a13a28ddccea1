"""Answering conversations: all that are open decode together, turn by turn; results come out in their order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from headstart.cli.prompts import Conversation
from headstart.cli.turns import Timed, Turns, decoding_speed
from headstart.common.ratio import Ratio
from headstart.engine.outputs import Completion, RequestOutput, TokenLogprobs
from headstart.errors import RequestError

if TYPE_CHECKING:
    from headstart.drafting.base import SpeculationParams
    from headstart.entrypoints.llm import LLM, OnCommit
    from headstart.entrypoints.prompts import EncodedPrompt
    from headstart.entrypoints.request import StreamPiece
    from headstart.sampling.params import SamplingParams

MOST_TURNS = 7
"""Of both ways of decoding, where they are compared."""
_FEW_TURNS = 3
"""That are worth waiting for longer."""
_TURNS_SECONDS, _FEW_SECONDS = 25.0, 60.0


@dataclass(frozen=True)
class Answer:
    """One turn of a conversation, and what became of it."""

    conversation: Conversation
    turn: int
    output: RequestOutput | None = None
    """None where there is only an error."""
    plain: RequestOutput | None = None
    """The same, decoded plainly, where that was asked for."""
    ratio: Ratio | None = None
    """How much faster speculation was, over all turns of both ways."""
    error: str | None = None


@dataclass
class Clock:
    """Wall time of decoding, in seconds, model loading not included."""

    speculative: float = 0.0
    """Of the answers themselves."""
    turns: Turns = field(default_factory=Turns)
    """Both ways in turns, where they are compared: over all answers."""


class Taker(Protocol):
    """Who is told what happens."""

    def begin(self, activity: str, samples: int) -> None:
        """``samples`` samples are going to be decoded."""

    def piece(self, piece: StreamPiece) -> None:
        """A piece of them."""

    def plain_piece(self, piece: StreamPiece) -> None:
        """A piece of them, where they are decoded plainly for comparison."""

    def answer(self, answer: Answer) -> None:
        """The next answer, in the order of the conversations and their turns."""


def answer_all(
    llm: LLM,
    conversations: Sequence[Conversation],
    params: SamplingParams,
    speculation: SpeculationParams,
    taker: Taker,
    *,
    compare: bool,
    clock: Clock,
) -> None:
    """Answer all turns of all conversations; with ``compare`` decode each request plainly too, and both ways again in
    turns, as often as it takes little time.

    What is there when it is cut short is handed on, and on the clock, before it is left.
    """
    _Answering(llm, params, speculation, taker, compare, clock).run(conversations)


class _Answering:
    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        speculation: SpeculationParams,
        taker: Taker,
        compare: bool,
        clock: Clock,
    ) -> None:
        self._llm = llm
        self._params = params
        self._speculation = speculation
        self._taker = taker
        self._compare = compare
        self._answers: list[Answer | None] = []
        self._handed_on = 0
        self._clock = clock
        self._salt = 0

    def run(self, conversations: Sequence[Conversation]) -> None:
        first_places = []
        for conversation in conversations:
            first_places.append(len(self._answers))
            self._answers += [None] * conversation.num_answers
        try:
            for turn in range(max(conversation.num_answers for conversation in conversations)):
                self._take_turn(
                    turn,
                    [
                        (conversation, first + turn)
                        for conversation, first in zip(conversations, first_places, strict=True)
                        if turn < conversation.num_answers
                    ],
                )
        finally:
            for answer in self._answers[self._handed_on :]:
                if answer is not None:
                    self._taker.answer(answer)

    def _take_turn(self, turn: int, conversations: Sequence[tuple[Conversation, int]]) -> None:
        requests: list[tuple[Conversation, int, EncodedPrompt]] = []
        for conversation, place in conversations:
            if conversation.error is None:
                try:
                    requests.append((conversation, place, conversation.request(self._llm, turn)))
                except RequestError as error:
                    self._fail(conversation, place, turn, str(error))
            else:
                self._settle(place, Answer(conversation, turn, error=conversation.error))
        if not requests:
            return
        prompts = [prompt for _, _, prompt in requests]
        samples: list[list[Completion]] = [[] for _ in requests]
        read: dict[int, list[TokenLogprobs | None]] = {}

        def settle(
            index: int, output: RequestOutput, plain: RequestOutput | None = None, ratio: Ratio | None = None
        ) -> None:
            conversation, place, _ = requests[index]
            if self._answers[place] is not None:
                return
            broken = next((sample for sample in output.outputs if sample.error is not None), None)
            if broken is not None:
                self._fail(conversation, place, turn, str(broken.error))
            else:
                conversation.answered(output.text)
                self._settle(place, Answer(conversation, turn, output, plain, ratio))

        def on_commit(piece: StreamPiece) -> None:
            self._taker.piece(piece)
            if piece.prompt_logprobs is not None:
                read[piece.prompt_index] = piece.prompt_logprobs
            if piece.completion is None or self._compare:
                return
            done = samples[piece.prompt_index]
            done.append(piece.completion)
            if len(done) == self._params.n:
                prompt = prompts[piece.prompt_index]
                done.sort(key=lambda sample: sample.index)
                settle(
                    piece.prompt_index, RequestOutput(prompt.text, prompt.token_ids, done, read.get(piece.prompt_index))
                )

        # Speculation goes first: drafters that remember requests must not have seen the plain answer.
        activity = "Decoding" if turn == 0 else f"Decoding turn {turn + 1}"
        self._taker.begin(activity, len(requests) * self._params.n)
        outputs, speculative = self._timed(prompts, self._speculation, on_commit)
        self._clock.speculative += speculative.seconds
        if not self._compare:
            for index, output in enumerate(outputs):
                settle(index, output)
            return
        taken, plain = _Taken(), outputs
        try:
            self._taker.begin(f"{activity} plainly", len(requests) * self._params.n)
            plain, plainly = self._timed(prompts, self._plainly, self._taker.plain_piece)
            taken.add(outputs, plain, speculative, plainly)
            self._take_turns(prompts, taken)
        finally:
            if taken.turns.plain:
                self._clock.turns.follow(taken.turns)
                for index, output in enumerate(outputs):
                    settle(index, output, plain[index], taken.ratio(index))

    def _take_turns(self, prompts: Sequence[EncodedPrompt], taken: _Taken) -> None:
        """Decode both ways again, one after the other, while that takes little time."""
        while len(taken.turns.plain) < MOST_TURNS:
            few = len(taken.turns.plain) < _FEW_TURNS
            pair = taken.turns.seconds / len(taken.turns.plain)
            if taken.turns.seconds + pair > (_FEW_SECONDS if few else _TURNS_SECONDS):
                break
            self._taker.begin(f"Turn {len(taken.turns.plain) + 1} of both", len(prompts) * self._params.n)
            # A scope of its own: what drafters remember of the turns before would be the answer itself.
            self._salt += 1
            outputs, speculative = self._timed(prompts, self._speculation, self._taker.plain_piece)
            plain, plainly = self._timed(prompts, self._plainly, self._taker.plain_piece)
            taken.add(outputs, plain, speculative, plainly)

    @property
    def _plainly(self) -> SpeculationParams:
        return replace(self._speculation, enabled=False)

    def _timed(
        self, prompts: Sequence[EncodedPrompt], speculation: SpeculationParams, on_commit: OnCommit
    ) -> tuple[list[RequestOutput], Timed]:
        start = time.perf_counter()
        outputs = self._llm.generate(
            prompts,
            self._params,
            speculation=speculation,
            on_commit=on_commit,
            strict=False,
            cache_salt=f"turn {self._salt}" if self._salt else "",
        )
        seconds = time.perf_counter() - start
        samples = [sample for output in outputs for sample in output.outputs]
        # Prefill can be told apart where one sequence had the passes to itself.
        prefill = samples[0].stats.prefill_seconds if len(samples) == 1 else 0.0
        return outputs, Timed(sum(sample.stats.tokens for sample in samples), seconds, prefill)

    def _fail(self, conversation: Conversation, place: int, turn: int, reason: str) -> None:
        where = "" if conversation.line is None else f"line {conversation.line}"
        if conversation.turns is not None:
            where += f", turn {turn}"
        conversation.error = f"{where}: {reason}" if where else reason
        self._settle(place, Answer(conversation, turn, error=conversation.error))

    def _settle(self, place: int, answer: Answer) -> None:
        """Keep an answer, and hand on all that have none missing before them."""
        self._answers[place] = answer
        while self._handed_on < len(self._answers) and (ready := self._answers[self._handed_on]) is not None:
            self._handed_on += 1
            self._taker.answer(ready)


class _Taken:
    """Turns of both ways: together, and of each prompt's first sample."""

    def __init__(self) -> None:
        self.turns = Turns()
        self._ratios: dict[int, list[float]] = {}

    def add(
        self, outputs: Sequence[RequestOutput], plain: Sequence[RequestOutput], speculative: Timed, plainly: Timed
    ) -> None:
        self.turns.add(speculative, plainly)
        for index, pair in enumerate(zip(outputs, plain, strict=True)):
            fast, slow = (decoding_speed(output.stats) for output in pair)
            if fast and slow:
                self._ratios.setdefault(index, []).append(fast / slow)

    def ratio(self, index: int) -> Ratio | None:
        """Of one prompt."""
        return Ratio.of(self._ratios.get(index, []))
