"""N-grams, unigrams, bigrams and random tokens: what costs nothing to make."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "ngram",
        "the most frequent continuation of the last 3, 2 or 1 tokens, chained",
        "akunu book, speculative decoding with n-grams",
        f"{__name__}.ngram:NgramDrafter",
        "text",
        usual=True,
        from_tokens=True,
        free=True,
    ),
    Method(
        "unigram",
        "the most frequent token so far, or draws from the counts",
        "Leviathan et al. 2023, section 4.2 (arXiv:2211.17192)",
        f"{__name__}.drafter:UnigramDrafter",
        "text",
        from_tokens=True,
    ),
    Method(
        "bigram",
        "the most frequent successor of the last token, chained, or draws from the counts",
        "Leviathan et al. 2023, section 4.2 (arXiv:2211.17192)",
        f"{__name__}.drafter:BigramDrafter",
        "text",
        from_tokens=True,
    ),
    Method(
        "random",
        "uniformly random tokens: the floor that any drafter must beat",
        "Leviathan et al. 2023, section 4.2 (arXiv:2211.17192)",
        f"{__name__}.drafter:RandomDrafter",
        "text",
    ),
)
