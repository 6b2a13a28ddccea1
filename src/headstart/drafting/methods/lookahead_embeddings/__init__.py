"""PaSS: look-ahead embeddings in the pass that verifies."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "pass",
        "what the target itself expects after trained look-ahead embeddings, in the pass that verifies",
        "Monea et al. 2023, PaSS (arXiv:2311.13581)",
        f"{__name__}.drafter:PassDrafter",
        "head",
    ),
)
