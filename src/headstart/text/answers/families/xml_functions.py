"""``<function=NAME><parameter=KEY>value</parameter></function>``, in ``<tool_call>`` or alone."""

from headstart.text.answers.forced import Frame, Pairs
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.markup import Markup, MarkupCalls

_MARKUP = Markup(("<function=", ">"), "</function>", ("<parameter=", ">"), "</parameter>")


def _form(names: tuple[str, ...], models: str, tag: str, signs: tuple[str, ...], without: tuple[str, ...]) -> CallForm:
    opening, closing = f"<{tag}>", f"</{tag}>"
    return CallForm(
        names=names,
        models=models,
        openings=(Opening((opening, _MARKUP.function[0]), MarkupCalls(_MARKUP, (closing,), (opening,))),),
        signs=signs,
        without=without,
        marks=(closing,),
        forced=Frame(
            f"{opening}\n<function=",
            ">\n",
            f"</function>\n{closing}",
            Pairs("<parameter=", ">\n", "</parameter>\n", closing_json="\n</parameter>\n"),
            between="\n",
        ),
    )


CALLS = (
    _form(
        ("qwen3_coder", "qwen3_xml", "nemotron_v3"),
        "Qwen3-Coder, Qwen3.5, Nemotron 3",
        "tool_call",
        ("<function=",),
        ("seed:tool_call",),
    ),
    _form(("seed_oss",), "Seed-OSS", "seed:tool_call", ("seed:tool_call",), ()),
)
THOUGHTS = (
    ThoughtForm(("seed_oss",), "Seed-OSS", "<seed:think>", "</seed:think>", marks=("<seed:cot_budget_reflect>",)),
)
