"""The likeliest paths of what EAGLE-3's layer guesses in one pass, behind masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.drafting.method import HeadPasses, Method, Trained

if TYPE_CHECKING:
    from headstart.drafting.heads.head_pass import MaskedHeadPass

METHODS = (
    Method(
        "p-eagle",
        "the likeliest paths of what EAGLE-3's layer guesses in one pass, behind masks",
        "P-EAGLE 2026 (arXiv:2602.01469); DDTree (arXiv:2604.12989)",
        f"{__name__}.drafter:PEagleDrafter",
        "head",
    ),
)

TRAINED = (
    Trained(
        "p-eagle",
        "headstart_train.first_steps.eagle:make_parallel",
        settings=("slots", "unroll", "dropout", "layers", "window", "init"),
        slots=8,
        begins_from=("eagle3",),
        optimiser="muon",
    ),
)

PASSES: HeadPasses[MaskedHeadPass] = HeadPasses(
    "headstart.backends.torch.masked_pass:masked_pass",
    "headstart.backends.native.masked_pass:NativeMaskedPass",
    "headstart.backends.native.heads:supports_head",
)
