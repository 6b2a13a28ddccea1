"""A tree of likely continuations of the longest repeated suffixes, sized by how long they match."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "suffix",
        "a tree of likely continuations of the longest repeated suffixes, sized by how long they match",
        "Oliaro et al. 2024, SuffixDecoding (arXiv:2411.04975)",
        f"{__name__}.drafter:SuffixDrafter",
        "text",
        usual=True,
        from_tokens=True,
        free=True,
        default_for="engine",
    ),
)
