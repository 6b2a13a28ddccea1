"""The target in fewer bits guesses for itself."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "self",
        "a chain or small tree from the target's own layers in 4, 3 or 2 bits, in the target's own cache, untrained",
        "Georganas et al. 2025, ML-SpecQD (arXiv:2503.13565); Zhao et al. 2025, QSpec (arXiv:2410.11305)",
        f"{__name__}.drafter:SelfDrafter",
        "model",
        default_for="target",
    ),
)
