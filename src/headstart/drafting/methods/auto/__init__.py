"""The guesses of several drafters in one tree, as many as pay, none where speculation would lose."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "auto",
        "the guesses of several drafters in one tree, as many as pay, none where speculation would lose",
        "Headstart; Leviathan et al. 2023, Theorem 3.8, on trees with measured costs",
        f"{__name__}.drafter:AutoDrafter",
        "several",
        usual=True,
        runs_others=True,
    ),
)
