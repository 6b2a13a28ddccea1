"""``<|START_ACTION|>[{"tool_name": ..., "parameters": {...}}]<|END_ACTION|>``."""

from headstart.text.answers.forced import Frame, JsonArguments
from headstart.text.answers.forms import CallForm, Opening, ThoughtForm
from headstart.text.answers.readers import JsonCalls

_OPENING, _CLOSING = "<|START_ACTION|>", "<|END_ACTION|>"
CALLS = (
    CallForm(
        names=("cohere", "cohere_command3"),
        models="Command A, Command R7B",
        openings=(Opening((_OPENING,), JsonCalls(closing=(_CLOSING,))),),
        signs=(_OPENING,),
        marks=(_CLOSING,),
        hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        forced=Frame(
            '{"tool_call_id": "0", "tool_name": ',
            ', "parameters": ',
            "}",
            JsonArguments(),
            before=f"{_OPENING}[\n    ",
            after=f"\n]{_CLOSING}",
            quoted=True,
            most=1,
        ),
    ),
)
THOUGHTS = (
    ThoughtForm(
        ("cohere", "cohere_command3"),
        "Command A Reasoning",
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
)
