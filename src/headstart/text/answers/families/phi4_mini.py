"""``functools[{"name": ..., "arguments": {...}}]``, and the list between marks."""

from headstart.text.answers.forced import json_frame
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.readers import JsonCalls

CALLS = (
    CallForm(
        names=("phi4_mini_json",),
        models="Phi-4-mini",
        openings=(
            Opening(("functools",), JsonCalls()),
            Opening(("<|tool_call|>",), JsonCalls(closing=("<|/tool_call|>",))),
        ),
        signs=("functools[", "<|/tool_call|>", "<|/tool|>"),
        marks=("<|/tool_call|>",),
        forced=json_frame("", "", before="functools[", between=", ", after="]"),
    ),
)
