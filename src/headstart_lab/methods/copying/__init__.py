"""Copies of the input."""

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
)
