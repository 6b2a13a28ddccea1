"""A confident tree from the multi-token modules that came with the target's checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.drafting.method import HeadPasses, Method, Trained

if TYPE_CHECKING:
    from headstart.drafting.heads.head_pass import ModulesPass

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
        "headstart_train.first_steps.multi_token:make",
        settings=("unroll", "init"),
        unroll=4,
        whole_vocabulary=True,
        own_start=True,
        check="headstart_train.first_steps.multi_token:require_trainable",
    ),
)

PASSES: HeadPasses[ModulesPass] = HeadPasses(
    "headstart.backends.torch.multi_token_pass:modules_pass",
    "headstart.backends.native.module_chain:modules_pass",
    "headstart.backends.native.supported:supports",
    as_the_target=True,
)
