"""The method dflash."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "dflash",
        "the likeliest paths of a block that a trained head guesses in one pass (also called dspark, jetspec)",
        "Chen et al. 2026, DFlash (arXiv:2602.06036); DDTree (arXiv:2604.12989), DSpark (arXiv:2607.05147)",
        f"{__name__}.drafter:DFlashDrafter",
        "head",
        other_names=("dspark", "jetspec"),
    ),
)
