"""``<function_calls>``, and calls in Python's notation, one a line."""

from headstart.text.answers.forced import python_frame
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.readers import PythonCalls

_OPENING, _CLOSING = "<function_calls>", "</function_calls>"
CALLS = (
    CallForm(
        names=("olmo3",),
        models="Olmo 3",
        openings=(Opening((_OPENING,), PythonCalls((_CLOSING,))),),
        signs=(_OPENING,),
        without=("DSML",),
        marks=(_CLOSING,),
        forced=python_frame(_OPENING, "\n", _CLOSING),
    ),
)
