"""``<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>``, in a section."""

from headstart.text.answers.forced import Frame, JsonArguments
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.readers import NamedCalls

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"


def _split(written: str) -> tuple[str, str | None]:
    """A call's id names the function, and which call of the conversation it is."""
    name, colon, number = written.rpartition(":")
    if not colon or not number.isdecimal():
        return written.removeprefix("functions."), None
    return name.removeprefix("functions."), written


CALLS = (
    CallForm(
        names=("kimi_k2",),
        models="Kimi K2",
        openings=(
            Opening((_SECTION, _CALL), NamedCalls(_CALL, (_ARGUMENTS,), (_END,), (_SECTION,), (_SECTION_END,), _split)),
        ),
        signs=(_CALL,),
        marks=(_ARGUMENTS, _END, _SECTION_END),
        forced=Frame(
            f"{_CALL}functions.", f":0{_ARGUMENTS}", _END, JsonArguments(), before=_SECTION, after=_SECTION_END, most=1
        ),
    ),
)
