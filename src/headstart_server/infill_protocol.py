"""The bodies of requests that ask for a text between two others: llama.cpp's ``POST /infill``, and Mistral's ``POST
/v1/fim/completions``."""

from __future__ import annotations

from typing import Annotated

from pydantic import AliasChoices, Field

from headstart_server.fields import Body, ListOf
from headstart_server.protocol import GenerationBody


class ExtraFile(Body):
    """A file, or a piece of one, that is shown before."""

    filename: str = ""
    text: str


class InfillBody(GenerationBody):
    """``POST /infill``; the fields beside llama.cpp's are those of the other routes."""

    input_prefix: str
    """What stands before."""
    input_suffix: str
    """What stands behind."""
    input_extra: ListOf[ExtraFile] | None = None
    """Other files of the repository."""
    prompt: str | None = None
    """The beginning of what is filled in, which is not repeated."""

    def own_name(self, field: str | None) -> str | None:
        """As for every request, with the names of this route."""
        own = super().own_name(field)
        names = {"prompt": "input_prefix", "suffix": "input_suffix", "max_tokens": "n_predict"}
        return names.get(own, own) if own else own


class FimBody(GenerationBody):
    """``POST /v1/fim/completions``; the fields beside Mistral's are those of the other routes."""

    prompt: str
    """What stands before."""
    suffix: str | None = None
    """What stands behind."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = Field(
        default=None, validation_alias=AliasChoices("random_seed", "seed")
    )
    """null, -1 or left out: a fresh one."""
