"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, and plain lists of such objects."""

from headstart.text.answers.forced import json_frame
from headstart.text.answers.forms import CallForm, Opening
from headstart.text.answers.readers import JsonCalls

CALLS = (
    CallForm(
        names=("hermes", "qwen", "qwen25", "longcat"),
        models="Hermes, Qwen2.5, Qwen3, Granite 4, SmolLM2 and SmolLM3, EXAONE 4",
        openings=(
            Opening(("<tool_call>",), JsonCalls(closing=("</tool_call>",))),
            Opening(("[",), JsonCalls(bare=True, alone=True), leads=True, held=True),
        ),
        signs=("<tool_call>",),
        without=("<function=", "<arg_key>", "<response>"),
        marks=("</tool_call>",),
        forced=json_frame("<tool_call>\n", "\n</tool_call>", between="\n"),
    ),
)
