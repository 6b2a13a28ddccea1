"""gpt-oss' messages: ``<|channel|>analysis<|message|>...<|end|>``, and calls addressed to ``functions.NAME``."""

import re

from headstart.text.answers.forced import Frame, JsonArguments
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.reader import AnswerReader
from headstart.text.answers.readers import plain_object
from headstart.text.answers.source import Reading, Source
from headstart.text.answers.tools import Calls

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BEGINS = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, " to=", "to=")
_RECIPIENT = re.compile(r"\bto=functions\.([-\w.]+)")


def _call(name: str) -> Opening:
    def read(source: Source, calls: Calls, opening: str) -> Reading[None]:
        known = calls.begin(name)
        place = source.place()
        yield from plain_object(source, calls.say)
        yield from source.close((*_ENDS, ""), (_START,))
        if not known:
            calls.stray.append(opening + source.since(place))

    return Opening((), read)


def _answer(reader: AnswerReader) -> Reading[None]:
    source = reader.source
    while (yield from source.more()):
        begun = yield from source.sees(*_BEGINS)
        if not begun:
            # Text without a header, which ends where a message begins or ends.
            mark = yield from source.until((_START, _CHANNEL, _MESSAGE, *_ENDS), reader.say)
            if mark in (_START, _CHANNEL, _MESSAGE):
                source.push_back(mark)
            continue
        header: list[str] = []
        mark = yield from source.until((_MESSAGE, *_ENDS), header.append)
        written = "".join(header)
        if mark != _MESSAGE:
            if not written.startswith((_START, _CHANNEL)):
                reader.say(written)
            continue
        recipient = _RECIPIENT.search(written)
        channel = written.partition(_CHANNEL)[2].split(_CONSTRAIN)[0].split()
        if recipient is not None:
            if not (yield from reader.read_calls(written + mark, _call(recipient.group(1)))):
                yield from source.until(_ENDS, reader.say)
        elif channel[:1] == ["analysis"]:
            if (yield from reader.think((*_ENDS, _START))) == _START:
                source.push_back(_START)
        else:
            yield from source.until(_ENDS, reader.say)


CALLS = (
    CallForm(
        names=("openai", "gpt_oss"),
        models="gpt-oss",
        openings=(),
        signs=("<|channel|>",),
        marks=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS),
        forced=Frame(
            f"{_CHANNEL}commentary to=functions.", f" {_CONSTRAIN}json{_MESSAGE}", "", JsonArguments(), most=1
        ),
        answer=_answer,
    ),
)
THOUGHTS = (
    ThoughtForm(
        ("openai_gptoss", "gptoss", "gpt_oss"),
        "gpt-oss",
        f"{_CHANNEL}analysis{_MESSAGE}",
        "<|end|>",
        signs=("<|channel|>",),
        marks=(_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS),
    ),
)
