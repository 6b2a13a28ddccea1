"""``<tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>``, or one object a line."""

from headstart.text.answers.forced import json_frame
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.readers import JsonCalls

_OPENING, _CLOSING = "<tool_calls>", "</tool_calls>"
CALLS = (
    CallForm(
        names=("hunyuan_a13b", "minimax", "jamba"),
        models="Hunyuan A13B, MiniMax M1, Jamba",
        openings=(Opening((_OPENING,), JsonCalls(closing=(_CLOSING,), between="{")),),
        signs=(_OPENING,),
        without=("DSML",),
        marks=(_CLOSING,),
        forced=json_frame("", "", before=f"{_OPENING}[", between=", ", after=f"]{_CLOSING}"),
    ),
)
THOUGHTS = (
    ThoughtForm(
        ("hunyuan_a13b",),
        "Hunyuan A13B",
        "<think>",
        "</think>",
        signs=("<think>", "<answer>"),
        hidden=("<answer>\n", "<answer>", "\n</answer>", "</answer>"),
    ),
)
