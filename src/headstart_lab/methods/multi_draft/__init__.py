"""A tree of draws from a draft model, or a chain from each of several."""

from headstart.drafting.method import OWN_LAYERS, Method

METHODS = (
    Method(
        "multi-draft",
        "a tree of draws from a draft model, or a chain from each of several",
        "Miao et al. 2024, SpecInfer (arXiv:2305.09781); Chen et al. 2024, Sequoia (arXiv:2402.12374)",
        f"{__name__}.drafter:MultiDraftDrafter",
        "model",
        untaught=OWN_LAYERS,
    ),
)
