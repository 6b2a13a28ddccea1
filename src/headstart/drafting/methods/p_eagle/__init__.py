"""The likeliest paths of what EAGLE-3's layer guesses in one pass, behind masks."""

from headstart.drafting.method import Method, Trained

METHODS = (
    Method(
        "p-eagle",
        "the likeliest paths of what EAGLE-3's layer guesses in one pass, behind masks",
        "P-EAGLE 2026 (arXiv:2602.01469); DDTree (arXiv:2604.12989)",
        f"{__name__}.drafter:PEagleDrafter",
        "head",
    ),
)

TRAINED = (
    Trained(
        "p-eagle",
        2,
        "headstart_train.first_steps.eagle:make_parallel",
        settings=("slots", "unroll", "dropout", "layers", "window", "init"),
        slots=8,
        begins_from=("eagle3",),
        optimiser="muon",
    ),
)
