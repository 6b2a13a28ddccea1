"""DeepSeek's: names behind marks and JSON up to V3.1, marks around each parameter from V3.2 on."""

from headstart.text.answers.forced import Frame, JsonArguments, Pairs
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.markup import Markup, MarkupCalls
from headstart.text.answers.readers import NamedCalls

_CALLS, _CALL, _SEP, _END, _ALL_END = (
    f"<｜{words}｜>" for words in ("tool▁calls▁begin", "tool▁call▁begin", "tool▁sep", "tool▁call▁end", "tool▁calls▁end")
)
_MARKS = (_CALLS, _CALL, _SEP, _END, _ALL_END)
_DSML = "｜DSML｜"


def _sections(name: str) -> tuple[str, ...]:
    return (f"<{_DSML}{name}>", f"</{_DSML}{name}>")


_FUNCTIONS, _FUNCTIONS_END = _sections("function_calls")
_TOOLS, _TOOLS_END = _sections("tool_calls")
_MARKUP = Markup(
    (f'<{_DSML}invoke name="', '">'),
    f"</{_DSML}invoke>",
    (f'<{_DSML}parameter name="', '">'),
    f"</{_DSML}parameter>",
    trimmed=False,
    flag=('" string="true">', '" string="false">'),
)


def _behind_kind(written: str) -> tuple[str, str | None]:
    """A function's name stands behind the kind of the call."""
    return written.partition(_SEP)[2], None


CALLS = (
    CallForm(
        names=("deepseek_v31",),
        models="DeepSeek V3.1",
        openings=(Opening((_CALLS, _CALL), NamedCalls(_CALL, (_SEP,), (_END,), (_CALLS,), (_ALL_END,))),),
        signs=(_SEP,),
        without=("```json", _DSML),
        marks=_MARKS,
        forced=Frame(_CALL, _SEP, _END, JsonArguments(), before=_CALLS, after=_ALL_END),
    ),
    CallForm(
        names=("deepseek_v3",),
        models="DeepSeek V3, R1",
        openings=(
            Opening(
                (_CALLS, _CALL), NamedCalls(_CALL, ("\n",), (_END,), (_CALLS,), (_ALL_END,), _behind_kind, "```json")
            ),
        ),
        signs=(_SEP,),
        without=(_DSML,),
        marks=_MARKS,
        forced=Frame(
            f"{_CALL}function{_SEP}",
            "\n```json\n",
            f"\n```{_END}",
            JsonArguments(),
            before=_CALLS,
            between="\n",
            after=_ALL_END,
        ),
    ),
    CallForm(
        names=("deepseek_v32", "deepseek_v4"),
        models="DeepSeek V3.2 and later",
        openings=(
            Opening((_FUNCTIONS,), MarkupCalls(_MARKUP, (_FUNCTIONS_END,), (_FUNCTIONS,))),
            Opening((_TOOLS,), MarkupCalls(_MARKUP, (_TOOLS_END,), (_TOOLS,))),
        ),
        signs=(_DSML,),
        marks=(_DSML,),
        forced=Frame(
            _MARKUP.function[0],
            '">\n',
            f"{_MARKUP.function_end}\n",
            Pairs(
                _MARKUP.parameter[0], '" string="true">', f"{_MARKUP.parameter_end}\n", named_json='" string="false">'
            ),
            before=f"{_FUNCTIONS}\n",
            after=_FUNCTIONS_END,
        ),
    ),
)
