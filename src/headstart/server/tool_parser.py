"""Finds tool calls in a model's text, in one way whether the text comes at once or piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headstart.server.tool_forms import JsonCalls, NotCalls, Part, ToolCall


class Reader(Protocol):
    """Reads what may be calls, from their opening mark on, in a text that grows."""

    def read(self, text: str, ended: bool) -> tuple[int, list[Part]] | None:
        """Where the calls end, and what they are; parts that are none stay text. None: more text is needed, which
        cannot be once it has ``ended``. ``text``: all that there is, from the opening mark on.

        Raises:
            NotCalls: it cannot become a call any more.
        """


@dataclass(frozen=True)
class CallForm:
    """One way to write calls."""

    mark: str
    """What they begin with."""
    reader: Callable[[Collection[str]], Reader]
    """Makes a reader; is given the names of the functions that may be called."""
    leads: bool = False
    """They are calls only where nothing but thoughts stands before them."""


@dataclass(frozen=True)
class Dialect:
    """How models of some families write calls and thoughts."""

    forms: tuple[CallForm, ...]
    thought: tuple[str, str]
    """What a thought stands between; it begins an answer or a line. Nothing in it is a call."""

    def begins_in_thought(self, prompt: str, continued: str = "") -> bool:
        """Whether an answer begins inside a thought: its prompt ends with the mark of one, or it continues a message
        that has not ended one."""
        opened, closed = map(continued.rfind, self.thought)
        return opened > closed or prompt.rstrip().endswith(self.thought[0])


HERMES = Dialect(
    (
        CallForm("<tool_call>", lambda names: JsonCalls(names, "<tool_call>", "</tool_call>")),
        CallForm("[", lambda names: JsonCalls(names, "", ""), leads=True),
    ),
    ("<think>", "</think>"),
)
"""Hermes, Qwen, SmolLM; and plain JSON lists, the form of calls that are enforced."""


class Said(NamedTuple):
    """What became certain of an answer."""

    text: str
    calls: list[ToolCall]


class ToolParser:
    """Splits one answer into calls and the text around them. White space is text, but for that which stands between
    calls, or between calls and an end of the answer.

    Args:
        names: of the functions that may be called; a call of another one stays text.
        thinking: the prompt ends inside a thought.
        parallel: False: of several calls only the first one counts.
    """

    def __init__(
        self, names: Collection[str], thinking: bool = False, parallel: bool = True, dialect: Dialect = HERMES
    ) -> None:
        self._names = names
        self._thinking = thinking
        self._parallel = parallel
        self._dialect = dialect
        self._held = ""
        """What is not certain yet; a text that may be calls begins it."""
        self._form: CallForm | None = None
        self._reader: Reader | None = None
        self._leading = True
        """Nothing but white space and thoughts has come."""
        self._blank: str | None = ""
        """White space since the beginning or the last call; None: something else came after it."""
        self._line_begins = True
        """Nothing but white space and thoughts has come in this line, or since a call."""
        self.called = 0
        """Calls found so far."""
        self._text: list[str] = []
        self._calls: list[ToolCall] = []

    def feed(self, piece: str) -> Said:
        """Take more text; return what became certain by it."""
        self._held += piece
        return self._read(ended=False)

    def finish(self) -> Said:
        """What is left when nothing more comes."""
        said = self._read(ended=True)
        return said if self.called or not self._blank else Said(self._blank, [])

    def _read(self, ended: bool) -> Said:
        while self._held and (self._pass_mark(ended) if self._reader is None else self._try_calls(ended)):
            pass
        said = Said("".join(self._text), self._calls)
        self._text, self._calls = [], []
        return said

    def _pass_mark(self, ended: bool) -> bool:
        """Say the text up to the next mark, and begin what it opens; False: there is none."""
        marks = self._marks()
        found = [(place, mark) for mark in marks if (place := self._held.find(mark)) >= 0]
        if not found:
            self._say(self._take(len(self._held) - (0 if ended else _unfinished(self._held, marks))))
            return False
        place, mark = min(found)
        self._say(self._take(place))
        opening, closing = self._dialect.thought
        if mark == opening and not self._line_begins:
            self._say(self._take(len(mark)))
        elif mark in (opening, closing):
            self._thinking = True
            self._say(self._take(len(mark)))
            self._thinking, self._line_begins = mark == opening, True
        else:
            self._form = next(form for form in self._dialect.forms if form.mark == mark)
            self._reader = self._form.reader(self._names)
        return True

    def _marks(self) -> list[str]:
        """What is looked for next."""
        opening, closing = self._dialect.thought
        if self._thinking:
            return [closing]
        begun = self._held.lstrip()
        return [
            opening,
            *(
                form.mark
                for form in self._dialect.forms
                if not form.leads or (self._leading and begun[: len(form.mark)] == form.mark[: len(begun)])
            ),
        ]

    def _try_calls(self, ended: bool) -> bool:
        """Take the calls that the held text begins with, or the mark as text; False: more text is needed."""
        assert self._reader is not None
        assert self._form is not None
        try:
            found = self._reader.read(self._held, ended)
        except NotCalls:
            self._reader = None
            self._say(self._take(len(self._form.mark)))
            return True
        if found is None:
            return False
        self._reader = None
        end, parts = found
        self._take(end)
        for part in parts:
            if isinstance(part, str):
                self._say(part)
                continue
            if self._parallel or not self.called:
                self._calls.append(part)
                self.called += 1
            self._leading, self._line_begins, self._blank = False, True, ""
        return True

    def _take(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def _say(self, text: str) -> None:
        if not text.strip() and self._blank is not None:
            self._blank += text
            return
        self._leading = self._leading and (self._thinking or not text.strip())
        _, broken, line = text.rpartition("\n")
        self._line_begins = (self._line_begins or bool(broken)) and not line.strip()
        self._text += (self._blank or "", text)
        self._blank = None


def _unfinished(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of a text may become one of the marks."""
    longest = min(len(text), max(map(len, marks)) - 1)
    sizes = range(longest, 0, -1)
    return next((size for size in sizes if any(mark.startswith(text[-size:]) for mark in marks)), 0)
