"""What a server is told: the model, its drafters, whom it lets in. One set of fields for ``headstart serve`` and for
whatever else starts the application."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from headstart.drafting import FREE_DRAFTERS
from headstart.drafting.options import parse_drafter
from headstart.drafting.registry import checked_options, chosen_drafter
from headstart.enumerations import BackendChoice, Numerics, Precision
from headstart.errors import ConfigError
from headstart.lending import heads_for
from headstart.llm import LLM
from headstart.loading import load_model
from headstart.models.aliases import DEFAULT_MODEL
from headstart.models.generation_config import named_file
from headstart.phases import phase
from headstart.reading import Reading
from headstart.server.access import read_keys
from headstart.server.settings import ServerSettings

KEY_VARIABLE = "HEADSTART_API_KEYS"


def _separate(value: object) -> object:
    """Names in one text, as command lines have them, become a list."""
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...] | None, BeforeValidator(_separate)]


class ServeArguments(BaseModel):
    """What is served, and to whom; the fields are named like the options of ``headstart serve``."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), use_attribute_docstrings=True)

    model: str = DEFAULT_MODEL
    """An alias, a directory, a hub id or a .gguf file."""
    revision: str | None = None
    precision: Precision = Precision.AUTO
    numerics: Numerics = Numerics.AUTO
    device: str = "cpu"
    backend: BackendChoice = BackendChoice.AUTO
    trust_remote_code: bool = False
    lora: str | None = None
    cuda_graphs: bool = True
    chat_template: str | None = None
    """In place of the model's own: a file, or the template itself."""
    max_context: int | None = Field(default=None, ge=2)
    drafter: str | None = None
    """With options after its name, like ``ngram:max_order=2``; None: the default, or what runs ``draft_model``."""
    drafter_options: dict[str, Any] = Field(default_factory=dict)
    also: Names = None
    """Further drafters that requests may name; None: those that need no model, and heads that come with Headstart."""
    draft_model: str | None = None
    draft_tokens: int | None = Field(default=None, ge=0)
    batch_size: int = Field(default=16, ge=1)
    cache_tokens: int | None = Field(default=None, ge=2)
    max_rows: int = Field(default=512, ge=1)
    prefix_caching: bool = True
    generation_config: str = "auto"
    served_name: Names = None
    """What clients call the model; all names are answered to, the first one is told. None: its own."""
    allow_host: Names = None
    """Host names that requests may be addressed to; None: any."""
    allow_origin: Names = None
    spec_decode_metrics: bool = False
    max_waiting: int = Field(default=64, ge=0)
    """Samples that may wait; further ones get status 429."""
    max_seconds: float = Field(default=600.0, gt=0)
    """Longest wall time of a request."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.served_name or (self.model,)))

    @property
    def reading(self) -> Reading:
        return Reading(self.backend, self.trust_remote_code, self.lora, self.cuda_graphs, self.chat_template)

    def chosen_drafter(self) -> tuple[str, dict[str, Any]]:
        """The drafter's name and its options; what shows without the target is refused.

        Raises:
            ConfigError, CheckpointError: as ``registry.checked_options``.
        """
        name, options = (None, {}) if self.drafter is None else parse_drafter(self.drafter)
        options |= self.drafter_options
        chosen = str(chosen_drafter(name, self.draft_model))
        checked_options(chosen, self.draft_model, self.draft_tokens or None, options)
        return chosen, options

    def check(self) -> None:
        """Refuse what can be refused without the target.

        Raises:
            ConfigError, CheckpointError: naming it.
        """
        self.chosen_drafter()
        for other in self.also or ():
            checked_options(other)
        named_file(self.generation_config)

    def load(self) -> LLM:
        """The model with its drafters; slow steps are named as ``phases``.

        Raises:
            HeadstartError: it cannot be loaded.
        """
        name, options = self.chosen_drafter()
        with phase(f"Loading {self.model}"):
            target = load_model(self.model, self.precision, self.revision, self.device, self.reading)
        return LLM(
            target,
            name,
            draft_model=self.draft_model,
            draft_tokens=self.draft_tokens,
            drafter_options=options,
            numerics=self.numerics,
            max_context=self.max_context,
            max_batch_size=self.batch_size,
            cache_tokens=self.cache_tokens,
            more_drafters=[*FREE_DRAFTERS, *heads_for(target).by_kind] if self.also is None else self.also,
            prefix_caching=self.prefix_caching,
            max_rows=self.max_rows,
            tolerant=True,
            generation_config=self.generation_config,
        )

    def settings(self, keys: tuple[str, ...]) -> ServerSettings:
        """Whom the server lets in; ``keys``: API keys, nobody needs one if there are none."""
        hosts = self.allow_host
        return ServerSettings(
            self.names[0],
            other_names=self.names[1:],
            api_keys=keys,
            allowed_hosts=None if hosts is None or "*" in hosts else hosts,
            cors_origins=self.allow_origin or (),
            spec_decode_metrics=self.spec_decode_metrics,
        )


def api_keys(path: Path | None) -> tuple[str, ...]:
    """The keys of a file, one per line; without a file those in the environment, separated by commas.

    Raises:
        ConfigError: the file cannot be read, or holds none.
    """
    if path is None:
        return read_keys(os.environ.get(KEY_VARIABLE, "").replace(",", "\n"))
    try:
        keys = read_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise ConfigError(f"the API keys cannot be read from {path}: {reason}.") from error
    if not keys:
        raise ConfigError(f"{path} holds no API key; write one per line.")
    return keys
