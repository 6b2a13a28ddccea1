"""A small drafter that came with Gemma 4: its layers read the target's own keys and values."""

from headstart.drafting.method import HeadFiles, Method

METHODS = (
    Method(
        "assistant",
        "a confident tree from an assistant of Gemma 4, whose layers read the target's own keys and values",
        "Google 2026, Gemma 4 assistants (ai.google.dev/gemma/docs/mtp)",
        f"{__name__}.drafter:AssistantDrafter",
        "head",
    ),
)

HEAD_FILES = HeadFiles(f"{__name__}.files", exports={})
