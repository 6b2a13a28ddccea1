"""``<|tool_call_start|>[f(a=1)]<|tool_call_end|>``."""

from headstart.text.answers.forced import python_frame
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
        forced=python_frame(f"{_OPENING}[", ", ", f"]{_CLOSING}"),
    ),
)
