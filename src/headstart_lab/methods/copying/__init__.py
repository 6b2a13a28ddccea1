"""Copies of the input, and of the context."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "copy",
        "the rest of the input from the place the output has reached in it",
        "Sun et al. 2021, Shallow Aggressive Decoding (arXiv:2106.04970)",
        f"{__name__}.drafter:CopyDrafter",
        "text",
        from_tokens=True,
    ),
    Method(
        "prompt-lookup",
        "what followed the last tokens when they stood in the context before",
        "Saxena 2023, prompt lookup decoding",
        f"{__name__}.prompt_lookup:PromptLookupDrafter",
        "text",
        from_tokens=True,
        free=True,
    ),
)
