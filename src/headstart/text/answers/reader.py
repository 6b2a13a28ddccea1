"""Splits an answer into its text, its thoughts and its calls, in one way whether it comes at once or piece by piece."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator

from headstart.text.answers.events import CallBegun, CallBroken, CallEnded, Event, Text, Thought, merged
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.source import NotCalls, Reading, Source
from headstart.text.answers.tools import Calls, Tools

_READ_AGAIN = 1 << 14
"""Characters of broken calls that are searched for other calls, beyond four times the answer: what is broken inside of
what is broken would be read over and over."""
_NONE = Tools({})
_log = logging.getLogger(__name__)


class AnswerReader:
    """Reads one answer. White space is text, but for that which stands between calls, between calls and an end of the
    answer, and around thoughts that are told apart.

    Args:
        tools: what may be called; a call of another function stays text.
        calls: how calls are written; None: none are looked for.
        thought: how thoughts are written; None: none are looked for.
        apart: thoughts are told apart; else they are text, in which nothing is a call.
        thinking: the answer begins inside a thought.
        parallel: False: of several calls only the first one counts.
    """

    def __init__(
        self,
        tools: Tools = _NONE,
        calls: CallForm | None = None,
        thought: ThoughtForm | None = None,
        *,
        apart: bool = True,
        thinking: bool = False,
        parallel: bool = True,
    ) -> None:
        self.source = Source()
        self.tools = tools
        self.called = 0
        """Calls found so far, all of them whole."""
        self.thoughts: list[tuple[int, int]] = []
        """Where in the answer thoughts stand, [from, to) in characters, less their marks."""
        self.broken = 0
        """What looked like calls and was none."""
        self._form = calls
        self._thought = thought
        self._apart = apart
        self._thinking = thinking
        self._parallel = parallel
        self._given = self._again = 0
        self._next = 0
        """Index of the next call."""
        self._out: list[Event] = []
        self._handed = 0
        """Times that events were handed out."""
        self._leading = True
        """Nothing but white space and thoughts has come."""
        self._line_begins = True
        """Nothing but white space and thoughts has come in this line, or since a call."""
        self._blank: list[str] | None = []
        """White space since the beginning, the last call or a thought told apart; None: something else came after."""
        self._after_thought = False
        whole = None if calls is None else calls.answer
        self._reading: Generator[None, None, None] | None = self._read() if whole is None else whole(self)

    def feed(self, piece: str) -> list[Event]:
        """Take more text; what became certain by it."""
        self._given += len(piece)
        self.source.add(piece)
        return self._advance()

    def finish(self) -> list[Event]:
        """What is left when nothing more comes."""
        self.source.ended = True
        return self._advance()

    def all(self, text: str) -> list[Event]:
        """What becomes certain by all of an answer, of which nothing was read before."""
        self._given += len(text)
        self.source.add(text)
        return self.finish()

    def _advance(self) -> list[Event]:
        if self._reading is not None:
            try:
                next(self._reading)
            except StopIteration:
                self._reading = None
                self._end()
        events, self._out = merged(self._out), []
        self._handed += 1
        return events

    def _end(self) -> None:
        if self._blank and not self._next and not self._after_thought:
            self._out.append(Text("".join(self._blank)))
        self._blank = None

    def _read(self) -> Reading[None]:
        source, thought = self.source, self._thought
        openings = self._form.openings if self._form is not None and self.tools.schemas else ()
        leads = {mark: opening for opening in openings if opening.leads for mark in opening.marks}
        others = {mark: opening for opening in openings if not opening.leads for mark in opening.marks}
        hidden = {*(() if self._form is None else self._form.hidden), *(() if thought is None else thought.hidden)}
        marks = [*others, *hidden, *(() if thought is None else thought.openings)]
        if self._thinking:
            yield from self.think()
        while True:
            if self._leading and leads:
                self.say((yield from source.blank()))
                begun = yield from source.sees(*leads, *marks)
                if begun in leads:
                    source.take(len(begun))
                    yield from self.read_calls(begun, leads[begun])
                    continue
            mark = yield from source.until(marks, self.say)
            if not mark:
                return
            if mark in others:
                yield from self.read_calls(mark, others[mark])
            elif thought is not None and mark in thought.openings:
                if self._line_begins:
                    if not self._apart:
                        self._say_thought(mark)
                    yield from self.think()
                else:
                    self.say(mark)

    @property
    def place(self) -> int:
        """Where in the answer reading stands, in characters."""
        return self._given - len(self.source.text)

    def think(self, closings: tuple[str, ...] = ()) -> Reading[str]:
        """Reads a thought, behind the mark that opens it; the mark that closes it. ``closings``: instead of the
        form's."""
        if not closings:
            assert self._thought is not None
            closings = self._thought.closings
        begin = self.place
        say: Callable[[str], None] = Stripped(self._out_thought).say if self._apart else self._say_thought
        mark = yield from self.source.until(closings, say)
        self.thoughts.append((begin, self.place - len(mark)))
        if mark and not self._apart:
            self._say_thought(mark)
        if self._apart:
            self._blank, self._after_thought = [], True
        self._line_begins = True
        return mark

    def _out_thought(self, text: str) -> None:
        self._out.append(Thought(text))

    def _say_thought(self, text: str) -> None:
        """A part of a thought that is told as text; it leads nowhere, so that calls may still lead the answer."""
        leading = self._leading
        self.say(text)
        self._leading = leading

    def read_calls(self, mark: str, opening: Opening) -> Reading[bool]:
        """Reads the calls that a mark opens; where there are none it is text, and all that follows is read again.
        Whether there were."""
        assert self._form is not None
        source, first, start, handed = self.source, self._next, len(self._out), self._handed
        held: list[Event] = []
        source.keep()
        calls = Calls(
            self.tools, first, held.append if opening.held else self._tell, self._parallel, self._form.id_size
        )
        try:
            yield from opening.read(source, calls, mark)
            if not calls.seen:
                raise NotCalls
        except NotCalls:
            raw = source.since()
            source.forget()
            if not opening.held:
                self._take_back(calls, start if handed == self._handed else None)
            self._again += len(raw)
            self.broken += 1
            if self._again > _READ_AGAIN + 4 * self._given:
                self.say(mark + raw)
            else:
                source.push_back(raw)
                self.say(mark)
            return False
        source.forget()
        self._out += held
        self._next = max(calls.indices.stop, first)
        self._out += [CallEnded(index) for index in calls.indices]
        self.called += len(calls.indices)
        self._leading, self._line_begins, self._blank, self._after_thought = False, True, [], False
        for text in calls.stray:
            self.say(text)
        return True

    def _tell(self, event: Event) -> None:
        self._out.append(event)

    def _take_back(self, calls: Calls, start: int | None) -> None:
        """Calls that are none; ``start``: of their events, where none was handed out."""
        if start is not None:
            del self._out[start:]
            return
        fresh = {event.index for event in self._out if isinstance(event, CallBegun)}
        self._out = [CallBroken(index) for index in calls.indices if index not in fresh]
        self._next = max([self._next, *[event.index + 1 for event in self._out if isinstance(event, CallBroken)]])
        if self._out:
            _log.info("a call that was begun in a stream is none; it stays text.")

    def say(self, text: str) -> None:
        """A part of the answer's text."""
        if self._blank is not None:
            if not text.strip():
                if text:
                    self._blank.append(text)
                return
            text = "".join(self._blank) + text
            if self._after_thought:
                text = text.lstrip()
            self._blank = None
        elif not text:
            return
        self._leading = self._leading and not text.strip()
        _, broken, line = text.rpartition("\n")
        self._line_begins = (self._line_begins or bool(broken)) and not line.strip()
        self._after_thought = False
        self._out.append(Text(text))


class Stripped:
    """Says a text without the white space around it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = False
        self._held: list[str] = []

    def say(self, text: str) -> None:
        if not self._begun:
            text = text.lstrip()
        kept = text.rstrip()
        if kept:
            self._begun = True
            self._say("".join(self._held) + kept)
            self._held = []
        if len(kept) < len(text):
            self._held.append(text[len(kept) :])


__all__ = ["AnswerReader"]
