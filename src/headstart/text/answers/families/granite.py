"""``<|tool_call|>[{"name": ..., "arguments": {...}}]``, up to the end of the answer; thoughts in prose."""

from headstart.text.answers.forced import json_frame
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.readers import JsonCalls

CALLS = (
    CallForm(
        names=("granite",),
        models="Granite 3",
        openings=(
            Opening(("<|tool_call|>",), JsonCalls()),
            Opening(("<tool_call>",), JsonCalls(closing=("</tool_call>",))),
        ),
        signs=("'<|tool_call|>'", '"<|tool_call|>"', "<|tool_call|><|end_of_text|>"),
        without=("<|/tool_call|>",),
        forced=json_frame("", "", before="<|tool_call|>[", between=", ", after="]"),
    ),
)

THOUGHTS = (
    ThoughtForm(
        names=("granite",),
        models="Granite 3.2",
        opening="Here is my thought process:",
        closing="Here is my response:",
        signs=("Here is my thought process:", "Here is my response:"),
        variants=(("Here's my thought process:", "Here's my response:"),),
    ),
)
