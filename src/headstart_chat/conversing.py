"""A conversation at the command line: what was said, how the next answer is decoded, and the answer itself."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstart.cli.showing import DraftText, Live, PlainText
from headstart.engine.outputs import SequenceStats
from headstart.engine.servable import require_fit
from headstart.engine.usefulness import UsefulnessWatch
from headstart.errors import ConfigError, HeadstartError, RequestError
from headstart.text.prompt_lines import read_lines

if TYPE_CHECKING:
    from headstart.drafting.base import SpeculationParams
    from headstart.entrypoints.llm import LLM
    from headstart.entrypoints.prompts import EncodedPrompt
    from headstart.sampling.params import SamplingParams

PLAIN = "none"
_TELLING = 32
"""Tokens whose speed says something."""


@dataclass(frozen=True)
class Told:
    """What became of an answer."""

    stats: SequenceStats | None
    """None: it was stopped."""
    dropped: int
    """Messages that no longer fitted into the context."""
    hint: str | None
    """That its drafter is of no use."""


class Conversation:
    """The messages so far, and the settings of the next answer.

    Args:
        llm: with prefix caching, so that only what is new is read.
        sampling: fields that were given; the model's defaults fill the others.
        own: defaults of the command, as ``SamplingDefaults.params`` has them.
        colours: show where tokens come from, if the terminal has colours.
        stoppable: Ctrl-C ends an answer, not the program.
    """

    def __init__(
        self,
        llm: LLM,
        sampling: Mapping[str, Any],
        own: Mapping[str, Any],
        speculation: SpeculationParams,
        system: str | None,
        *,
        colours: bool,
        stoppable: bool,
    ) -> None:
        self._llm = llm
        self._sampling = dict(sampling)
        self._own = own
        self._speculation = speculation
        self._colours = colours
        self._stoppable = stoppable
        self._watch = UsefulnessWatch()
        self._saved: set[Path] = set()
        self.messages: list[dict[str, Any]] = []
        """Without the system message."""
        self.system = system
        self.drafter = llm.drafter_name
        self.all_stats: list[tuple[str, SequenceStats]] = []
        """(drafter, counts) of each answer that came to its end."""

    @property
    def drafters(self) -> list[str]:
        """Those that can be chosen."""
        return list(dict.fromkeys((PLAIN, *self._llm.engine.drafters.drafters)))

    @property
    def params(self) -> SamplingParams:
        """Of the next answer."""
        return self._llm.sampling_defaults.params(self._sampling, self._own)

    def set_sampling(self, name: str, value: Any) -> None:
        """Give a field of the sampling parameters.

        Raises:
            RequestError: it cannot have this value.
        """
        self._llm.sampling_defaults.params({**self._sampling, name: value}, self._own)
        self._sampling[name] = value

    def answer(self, text: str) -> Told:
        """Answer a message; the answer goes to stdout as it is decoded. Ctrl-C ends it early, and keeps what was said.

        Raises:
            HeadstartError: it cannot be answered; the conversation is as it was.
        """
        before = len(self.messages)
        self.messages.append({"role": "user", "content": text})
        try:
            prompt, dropped = self._fitting()
            return self._decode(prompt, dropped)
        except HeadstartError:
            del self.messages[before:]
            raise

    def take_back(self) -> str:
        """The last message, with its answer removed, to be answered anew.

        Raises:
            RequestError: there is none.
        """
        users = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        if not users:
            raise RequestError("nothing was asked yet; write a message first.")
        text = str(self.messages[users[-1]]["content"])
        del self.messages[users[-1] :]
        return text

    def save(self, path: Path) -> None:
        """Write the conversation as a line that ``generate --prompts`` and ``load`` read.

        Raises:
            ConfigError: the file exists and is not of this conversation, or cannot be written.
        """
        if path.exists() and path.resolve() not in self._saved:
            raise ConfigError(f"{path} exists already; name a new file.")
        try:
            path.write_text(json.dumps({"messages": self._sent()}, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
        self._saved.add(path.resolve())

    def load(self, path: Path) -> None:
        """Go on with a conversation that was saved.

        Raises:
            ConfigError, RequestError: the file cannot be read, or holds no conversation; this one stays as it was.
        """
        line = read_lines(path)[0]
        if line.error is not None or line.forms != ["messages"]:
            raise RequestError(f"{path} holds no conversation; name a file that /save has written.")
        messages = line.messages()
        self._llm.encode_chat(messages)
        has_system = messages[0].get("role") == "system"
        self.system = str(messages[0].get("content")) if has_system else None
        self.messages = [dict(message) for message in messages[has_system:]]
        self._saved.add(path.resolve())

    def plain_speed(self) -> float | None:
        """Tokens a second of the answers that were decoded plainly; None: there are too few."""
        plain = [stats for drafter, stats in self.all_stats if drafter == PLAIN]
        return _speed(plain) if sum(stats.tokens for stats in plain) >= _TELLING else None

    def _sent(self, first: int = 0) -> list[dict[str, Any]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.messages[first:]]

    def _fitting(self) -> tuple[EncodedPrompt, int]:
        """The prompt, without as many of the oldest turns as leave no room for an answer."""
        context = self._llm.engine.limits.max_context
        room = min(self.params.max_tokens or context, context // 4)
        turns = [place for place, message in enumerate(self.messages) if message["role"] == "user"]
        first, prompt = 0, self._llm.encode_chat(self._sent())
        for place in turns[1:]:
            if len(prompt.token_ids) + room <= context:
                break
            first, prompt = place, self._llm.encode_chat(self._sent(place))
        require_fit(len(prompt.token_ids), context)
        return prompt, first

    def _decode(self, prompt: EncodedPrompt, dropped: int) -> Told:
        plain = self.drafter == PLAIN
        speculation = replace(self._speculation, enabled=not plain, drafter=None if plain else self.drafter)
        params = self.params
        live: Live = PlainText()
        if self._colours:
            coloured = DraftText(self._llm.model.tokenizer, prompt.token_ids, params, with_rejected=False)
            live = coloured if coloured.has_colours else live
        said, done = "", None
        try:
            with _ctrl_c(self._stoppable) as pressed:
                stream = self._llm.stream(prompt, params, speculation=speculation, stopped=lambda: bool(pressed))
                for piece in stream:
                    live.show(piece)
                    said += piece.text
                    done = piece.completion
        except HeadstartError:
            if said:
                print(flush=True)  # before the sentence that says why
            raise
        print(flush=True)
        self.messages.append({"role": "assistant", "content": said})
        if done is None:
            return Told(None, dropped, None)
        self.all_stats.append((self.drafter, done.stats))
        return Told(done.stats, dropped, None if plain else self._watch.add(self.drafter, done.stats))


def stats_line(stats: SequenceStats, plain_speed: float | None) -> str:
    """One answer's counts, for people."""
    speed = _speed([stats])
    parts = [f"{stats.tokens} tokens"]
    if speed is not None:
        parts.append(f"{speed:.1f} tokens/s")
    if stats.drafted:
        parts.append(f"{stats.mean_accepted_length:.2f} tokens a round")
        if speed is not None and plain_speed is not None:
            parts.append(f"{speed / plain_speed:.2f} times plain")
    if stats.cached_tokens:
        parts.append(f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens from the cache")
    return ", ".join(parts)


def summed(answers: Sequence[tuple[str, SequenceStats]]) -> list[str]:
    """A line for each drafter, over all its answers."""
    lines = []
    plain = _speed([stats for drafter, stats in answers if drafter == PLAIN])
    for name in dict.fromkeys(drafter for drafter, _ in answers):
        own = [stats for drafter, stats in answers if drafter == name]
        tokens, rounds, speed = (sum(each.tokens for each in own), sum(each.rounds for each in own), _speed(own))
        line = f"{name}: {len(own)} answers, {tokens} tokens"
        if speed is not None:
            line += f", {speed:.1f} tokens/s"
        if rounds:
            line += f", {tokens / rounds:.2f} tokens a round"
        if speed is not None and plain is not None and name != PLAIN:
            line += f", {speed / plain:.2f} times plain"
        lines.append(line)
    return lines


def _speed(answers: list[SequenceStats]) -> float | None:
    """Tokens a second, reading the prompt left out."""
    seconds = sum(stats.seconds - stats.prefill_seconds for stats in answers)
    return sum(stats.tokens for stats in answers) / seconds if seconds > 0 else None


@contextmanager
def _ctrl_c(heard: bool) -> Iterator[list[bool]]:
    """In here, Ctrl-C makes the list true, between passes and not within one; a second one ends the program. If it is
    not ``heard``, it ends the program as ever."""
    pressed: list[bool] = []
    if not heard:
        yield pressed
        return

    def press(*_: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(True)

    previous = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        sys.stdout.flush()
        signal.signal(signal.SIGINT, previous)
