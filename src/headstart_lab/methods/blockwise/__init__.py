"""A chain from one trained layer that says several future tokens."""

from headstart.drafting.method import Method, Trained

METHODS = (
    Method(
        "blockwise",
        "a chain from one trained layer that says several future tokens",
        "Stern et al. 2018 (arXiv:1811.03115)",
        f"{__name__}.drafter:BlockwiseDrafter",
        "head",
    ),
)

TRAINED = (
    Trained(
        "blockwise",
        "headstart_lab.methods.medusa.training:make_blockwise",
        settings=("slots", "init"),
        learning_rate=2e-3,
    ),
)
