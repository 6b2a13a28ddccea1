"""``[TOOL_CALLS]NAME[ARGS]{...}``, and the older ``[TOOL_CALLS][{"name": ..., "arguments": {...}}]``."""

from headstart.text.answers.forced import Frame, JsonArguments
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.readers import JsonCalls, NamedCalls
from headstart.text.answers.source import Reading, Source
from headstart.text.answers.tools import Calls

_OPENING, _ARGUMENTS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def _split(written: str) -> tuple[str, str | None]:
    name, _, call_id = written.partition(_CALL_ID)
    return name, call_id or None


_OLD, _NEW = JsonCalls(), NamedCalls("", (_ARGUMENTS,), split=_split)


def _read(source: Source, calls: Calls, opening: str) -> Reading[None]:
    yield from source.blank()
    if (yield from source.sees("[", "{")):
        yield from _OLD(source, calls, opening)
    else:
        yield from _NEW(source, calls, opening)


CALLS = (
    CallForm(
        names=("mistral",),
        models="Mistral, Ministral, Magistral, Devstral",
        openings=(Opening((_OPENING,), _read),),
        signs=(_OPENING,),
        marks=(_ARGUMENTS, _CALL_ID),
        forced=Frame(_OPENING, _ARGUMENTS, "", JsonArguments()),
        id_size=9,
    ),
)
THOUGHTS = (ThoughtForm(("mistral",), "Magistral, Ministral 3", "[THINK]", "[/THINK]"),)
