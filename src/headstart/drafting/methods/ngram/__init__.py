"""The most frequent continuation of the last 3, 2 or 1 tokens, chained."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "ngram",
        "the most frequent continuation of the last 3, 2 or 1 tokens, chained",
        "akunu book, speculative decoding with n-grams",
        f"{__name__}.drafter:NgramDrafter",
        "text",
        usual=True,
        from_tokens=True,
        free=True,
    ),
)
