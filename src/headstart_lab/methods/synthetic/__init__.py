"""Answers of before, right at chosen rates: for load tests."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "synthetic",
        "answers of before, right at chosen rates: for load tests",
        "Headstart; vLLM's synthetic acceptance, but exact",
        f"{__name__}.drafter:SyntheticDrafter",
        "text",
    ),
)
