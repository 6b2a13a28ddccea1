"""A chain from a smaller model, or from some of the target's own layers."""

from headstart.drafting.method import OWN_LAYERS, Method

METHODS = (
    Method(
        "draft-model",
        "a chain from a smaller model, or from some of the target's own layers",
        "Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318)",
        f"{__name__}.drafter:DraftModelDrafter",
        "model",
        untaught=OWN_LAYERS,
        default_for="model",
    ),
)
