"""PaSS: look-ahead embeddings in the pass that verifies."""

from headstart.drafting.method import HeadFiles, Method, Trained

METHODS = (
    Method(
        "pass",
        "what the target itself expects after trained look-ahead embeddings, in the pass that verifies",
        "Monea et al. 2023, PaSS (arXiv:2311.13581)",
        f"{__name__}.drafter:PassDrafter",
        "head",
    ),
)

TRAINED = (
    Trained(
        "pass",
        f"{__name__}.training:make",
        settings=("slots",),
        whole_vocabulary=True,
        learning_rate=1e-2,
    ),
)

HEAD_FILES = HeadFiles(f"{__name__}.files", exports={"pass": ()})
