"""A confident tree from the multi-token modules that came with the target's checkpoint."""

from headstart.drafting.method import Method, Trained

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

TRAINED = (
    Trained(
        "mtp",
        9,
        "headstart_train.first_steps.multi_token:make",
        settings=("unroll", "init"),
        unroll=4,
        whole_vocabulary=True,
        own_start=True,
        check="headstart_train.first_steps.multi_token:require_trainable",
    ),
)
