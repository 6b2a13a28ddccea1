"""ERNIE's answers: text in ``<response>``, calls as Hermes writes them."""

from headstart.text.answers.families import hermes
from headstart.text.answers.forms import CallForm, ThoughtForm

_HERMES = hermes.CALLS[0]
CALLS = (
    CallForm(
        names=("ernie45",),
        models="ERNIE 4.5",
        openings=_HERMES.openings,
        signs=("<response>",),
        without=("<function=",),
        marks=_HERMES.marks,
        hidden=("<response>\n", "<response>", "\n</response>", "</response>"),
        forced=_HERMES.forced,
    ),
)
THOUGHTS = (ThoughtForm(("ernie45",), "ERNIE 4.5", "<think>", "</think>", signs=("<think>", "<response>")),)
