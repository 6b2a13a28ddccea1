"""What the target itself has said or nearly said, found in its own passes without any training."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "lookahead",
        "n-grams that the target's own passes find on the side, without any training",
        "Fu et al. 2024, lookahead decoding (arXiv:2402.02057)",
        f"{__name__}.drafter:LookaheadDrafter",
        "target",
        free=True,
    ),
    Method(
        "recycling",
        "a tree over the target's own runner-up tokens, kept from earlier passes and requests",
        "Luo et al. 2024, Token Recycling (arXiv:2408.08696)",
        f"{__name__}.recycling:RecyclingDrafter",
        "text",
        usual=True,
        from_tokens=True,
        free=True,
    ),
)
