"""What is told of an answer: its text, its thoughts and its calls, in the order in which they became certain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """A part of the answer's text."""

    text: str


@dataclass(frozen=True)
class Thought:
    """A part of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """A call of a function."""

    index: int
    """Among the calls of this answer, from 0."""
    id: str
    name: str


@dataclass(frozen=True)
class Arguments:
    """A part of a call's arguments: all parts together are the text of a JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnded:
    """A call is whole."""

    index: int


@dataclass(frozen=True)
class CallBroken:
    """A call that was told already turned out to be none: its text follows, and it does not count."""

    index: int


Event = Text | Thought | CallBegun | Arguments | CallEnded | CallBroken


@dataclass(frozen=True)
class Call:
    """One call, with its arguments as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """All that an answer says."""

    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)


def told(events: Iterable[Event]) -> Answer:
    """All events of an answer as one."""
    text, thought = list[str](), list[str]()
    begun, arguments, ended = dict[int, CallBegun](), dict[int, list[str]](), list[int]()
    for event in events:
        match event:
            case Text():
                text.append(event.text)
            case Thought():
                thought.append(event.text)
            case CallBegun():
                begun[event.index], arguments[event.index] = event, []
            case Arguments():
                arguments[event.index].append(event.text)
            case CallEnded():
                ended.append(event.index)
            case CallBroken():
                begun.pop(event.index)
    calls = [Call(begun[index].id, begun[index].name, "".join(arguments[index])) for index in ended]
    return Answer("".join(text), "".join(thought), calls)


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events, with neighbours of one kind as one."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        match last, event:
            case Text(), Text():
                found[-1] = Text(last.text + event.text)
            case Thought(), Thought():
                found[-1] = Thought(last.text + event.text)
            case Arguments(), Arguments() if last.index == event.index:
                found[-1] = Arguments(event.index, last.text + event.text)
            case _:
                found.append(event)
    return found
