"""A chain from the target's first layers, in the target's own cache."""

from headstart.drafting.method import OWN_LAYERS, Method

METHODS = (
    Method(
        "early-exit",
        "a chain from the target's first layers; pays where the target was trained for that (LayerSkip)",
        "Elhoushi et al. 2024, LayerSkip (arXiv:2404.16710)",
        f"{__name__}.drafter:EarlyExitDrafter",
        "model",
        untaught=OWN_LAYERS,
    ),
)
