"""How a model is read, beside its name: whose code computes it, and what may be run or added for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headstart.common.enumerations import BackendChoice, named


@dataclass(frozen=True)
class Reading:
    """Choices that are made before anything of a model is read.

    Raises:
        ConfigError: one of them is unknown.
    """

    backend: BackendChoice | str = BackendChoice.AUTO
    trust_remote_code: bool = False
    """Whether code that comes with a model may be run."""
    lora: str | Path | None = None
    """Folder of a LoRA adapter, as peft saves it, that is merged into the model's matrices."""
    cuda_graphs: bool = True
    """Whether passes are recorded as CUDA graphs and replayed, where the device is one of CUDA's."""

    chat_template: str | Path | None = None
    """A template of messages to use in place of the model's own, or the file that holds it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "backend", named(BackendChoice, "backend", self.backend))


USUAL = Reading()
