"""``<minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke></minimax:tool_call>``."""

from headstart.text.answers.forced import Frame, Pairs
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.markup import Markup, MarkupCalls

_OPENING, _CLOSING = "<minimax:tool_call>", "</minimax:tool_call>"
_MARKUP = Markup(('<invoke name="', '">'), "</invoke>", ('<parameter name="', '">'), "</parameter>")
CALLS = (
    CallForm(
        names=("minimax_m2",),
        models="MiniMax M2",
        openings=(Opening((_OPENING,), MarkupCalls(_MARKUP, (_CLOSING,), (_OPENING,))),),
        signs=("minimax:tool_call",),
        marks=(_CLOSING,),
        forced=Frame(
            '<invoke name="',
            '">\n',
            "</invoke>\n",
            Pairs('<parameter name="', '">', "</parameter>\n"),
            before=f"{_OPENING}\n",
            after=_CLOSING,
        ),
    ),
)
