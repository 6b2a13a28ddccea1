"""``<|tool_call_start|>[f(a=1)]<|tool_call_end|>``."""

from headstart.text.answers.forced import Frame, Pairs
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.readers import PythonCalls

_OPENING, _CLOSING = "<|tool_call_start|>", "<|tool_call_end|>"
CALLS = (
    CallForm(
        names=("lfm2",),
        models="LFM2",
        openings=(Opening((_OPENING,), PythonCalls((_CLOSING,))),),
        signs=(_OPENING,),
        marks=(_CLOSING,),
        forced=Frame(
            "",
            "",
            "",
            Pairs("", "=", "", ", ", "(", ")", quote=None, words=("True", "False", "None")),
            before=f"{_OPENING}[",
            between=", ",
            after=f"]{_CLOSING}",
        ),
    ),
)
