"""A chain from a draft model that has a drafter of its own."""

from headstart.drafting.method import OWN_LAYERS, Method

METHODS = (
    Method(
        "hierarchical",
        "a chain from a draft model that has a drafter of its own",
        "Spector & Re 2023, staged speculative decoding (arXiv:2308.04623)",
        f"{__name__}.drafter:HierarchicalDrafter",
        "model",
        runs_others=True,
        untaught=OWN_LAYERS,
    ),
)
