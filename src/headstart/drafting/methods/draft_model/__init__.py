"""A chain from a smaller model, or from some of the target's own layers."""

from headstart.drafting.method import OWN_LAYERS, Method, Trained

METHODS = (
    Method(
        "draft-model",
        "a chain from a smaller model, or from some of the target's own layers",
        "Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318)",
        f"{__name__}.drafter:DraftModelDrafter",
        "model",
        untaught=OWN_LAYERS,
        default_for="model",
    ),
)

TRAINED = (
    Trained(
        "draft-model",
        "headstart_train.first_steps.draft_model:make",
        settings=("layers",),
        whole_vocabulary=True,
        layers_of_target=True,
        check="headstart_train.first_steps.draft_model:require_trainable",
    ),
)
