"""EAGLE 1 to 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.drafting.method import HeadFiles, HeadPasses, Method, Trained

if TYPE_CHECKING:
    from headstart.drafting.heads.head_pass import HeadPass

METHODS = (
    Method(
        "eagle3",
        "a confident tree from a trained layer that reads several of the target's layers",
        "Li et al. 2025, EAGLE-3 (arXiv:2503.01840)",
        f"{__name__}.drafter:Eagle3Drafter",
        "head",
    ),
    Method(
        "eagle2",
        "a confident tree from a trained layer that reads the target's last state",
        "Li et al. 2024, EAGLE-2 (arXiv:2406.16858)",
        f"{__name__}.drafter:Eagle2Drafter",
        "head",
    ),
    Method(
        "eagle",
        "a static tree from a trained layer that reads the target's last state",
        "Li et al. 2024, EAGLE (arXiv:2401.15077)",
        f"{__name__}.drafter:EagleDrafter",
        "head",
    ),
)

TRAINED = (
    Trained(
        "eagle3",
        "headstart_train.first_steps.eagle:make",
        settings=("unroll", "dropout", "layers", "window", "init"),
        unroll=4,
        optimiser="muon",
    ),
    Trained("eagle", "headstart_train.first_steps.eagle:make_first", settings=("unroll", "dropout", "layers", "init")),
)

HEAD_FILES = HeadFiles(
    f"{__name__}.files",
    exports={
        "eagle3": ("eagle3", "speculators", "sglang", "specforge"),
        "p-eagle": ("eagle3", "speculators"),
        "eagle": ("eagle", "speculators"),
    },
)

PASSES: HeadPasses[HeadPass] = HeadPasses(
    "headstart.backends.torch.eagle_pass:eagle_pass",
    "headstart.backends.native.heads:NativeEaglePass",
    "headstart.backends.native.heads:supports_head",
)
