"""A tree over the target's own runner-up tokens, kept from earlier passes and requests."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "recycling",
        "a tree over the target's own runner-up tokens, kept from earlier passes and requests",
        "Luo et al. 2024, Token Recycling (arXiv:2408.08696)",
        f"{__name__}.drafter:RecyclingDrafter",
        "text",
        usual=True,
        from_tokens=True,
        free=True,
    ),
)
