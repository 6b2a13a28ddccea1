"""What followed the last tokens when they stood in the context before."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "prompt-lookup",
        "what followed the last tokens when they stood in the context before",
        "Saxena 2023, prompt lookup decoding",
        f"{__name__}.drafter:PromptLookupDrafter",
        "text",
        from_tokens=True,
        free=True,
    ),
)
