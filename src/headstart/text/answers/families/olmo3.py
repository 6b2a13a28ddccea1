"""``<function_calls>``, and calls in Python's notation, one a line."""

from headstart.text.answers.forced import Frame, Pairs
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
        forced=Frame(
            "",
            "",
            "",
            Pairs("", "=", "", ", ", "(", ")", quote=None, words=("True", "False", "None")),
            before=_OPENING,
            between="\n",
            after=_CLOSING,
        ),
    ),
)
