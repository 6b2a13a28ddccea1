"""A sparse tree over several trained heads, each of which says one future token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headstart.drafting.method import HeadFiles, HeadPasses, Method, Trained

if TYPE_CHECKING:
    from headstart_lab.methods.medusa.running import ParallelPass

METHODS = (
    Method(
        "medusa",
        "a sparse tree over several trained heads, each of which says one future token",
        "Cai et al. 2024, Medusa (arXiv:2401.10774)",
        f"{__name__}.drafter:MedusaDrafter",
        "head",
    ),
)

TRAINED = (
    Trained(
        "medusa",
        "headstart_lab.methods.medusa.training:make_medusa",
        settings=("slots", "init", "residual_blocks", "reads_token"),
        optimiser="muon",
    ),
)

NAMES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
HEAD_FILES = HeadFiles(f"{__name__}.files", exports={"medusa": ("medusa",), "blockwise": ()}, names=NAMES)

PASSES: HeadPasses[ParallelPass] = HeadPasses("headstart_lab.methods.medusa.running:ParallelPass", by_products=True)
