"""``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>``."""

from headstart.text.answers.forced import Frame, Pairs
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.markup import Markup
from headstart.text.answers.source import NotCalls, Reading, Source
from headstart.text.answers.tools import Calls

_CLOSING = "</tool_call>"
_PAIRS = Markup(("", ""), _CLOSING, ("<arg_key>", "<arg_value>"), "</arg_value>", "</arg_key>", trimmed=False)


def _read(source: Source, calls: Calls, opening: str) -> Reading[None]:
    name, mark = yield from source.name_until(_PAIRS.parameter[0], _CLOSING, "\n\n", "{")
    if mark in ("{", "\n\n"):
        raise NotCalls
    source.push_back(mark)
    if not calls.begin(name.strip()):
        raise NotCalls
    yield from _PAIRS.parameters(source, calls, name.strip(), (_CLOSING,))


CALLS = (
    CallForm(
        names=("glm45", "glm47"),
        models="GLM 4.5, 4.6, 4.7",
        openings=(Opening(("<tool_call>",), _read),),
        signs=("<arg_key>",),
        marks=("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", _CLOSING),
        forced=Frame(
            "<tool_call>", "\n", _CLOSING, Pairs("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"), between="\n"
        ),
    ),
)
