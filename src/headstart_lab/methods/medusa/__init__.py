"""A sparse tree over several trained heads, each of which says one future token."""

from headstart.drafting.method import HeadFiles, Method, Trained

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
        7,
        "headstart_train.first_steps.parallel:make_medusa",
        settings=("slots", "init", "residual_blocks", "reads_token"),
        optimiser="muon",
    ),
)

HEAD_FILES = HeadFiles(f"{__name__}.files", exports={"medusa": ("medusa",), "blockwise": ()})
