"""N-grams that the target's own passes find on the side, without any training."""

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
)
