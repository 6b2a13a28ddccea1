"""A confident tree from the multi-token modules that came with the target's checkpoint."""

from headstart.drafting.method import Method

METHODS = (
    Method(
        "mtp",
        "a confident tree from the multi-token modules that came with the target's checkpoint",
        "DeepSeek-AI 2024, DeepSeek-V3, section 2.2 (arXiv:2412.19437)",
        f"{__name__}.drafter:MtpDrafter",
        "head",
        default_for="module",
    ),
)
