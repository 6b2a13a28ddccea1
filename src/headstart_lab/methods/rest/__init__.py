"""A tree of what followed the longest known suffix in a store of texts."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "rest",
        "a tree of what followed the longest known suffix in a store of texts",
        "He et al. 2023, REST (arXiv:2311.08252)",
        f"{__name__}.drafter:RestDrafter",
        "text",
        from_tokens=True,
    ),
)
