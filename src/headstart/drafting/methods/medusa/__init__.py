"""A sparse tree over several trained heads, each of which says one future token."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "medusa",
        "a sparse tree over several trained heads, each of which says one future token",
        "Cai et al. 2024, Medusa (arXiv:2401.10774)",
        f"{__name__}.drafter:MedusaDrafter",
        "head",
    ),
)
