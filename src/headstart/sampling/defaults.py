"""What a request that leaves sampling parameters out gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headstart.sampling.params import SamplingParams

SHAPING = ("temperature", "top_k", "top_p", "min_p")
"""Fields that say how sharp the law is that tokens are drawn from."""
MODEST = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""For a model that says nothing: llama.cpp's defaults. At temperature 1 and no cut small models talk nonsense."""


@dataclass(frozen=True)
class SamplingDefaults:
    """Defaults of two kinds (docs/decisions/0051): what the model's publisher ``stated`` fills each field that a
    request leaves out; ``fallback`` stands in as a whole, where neither of them says anything of ``SHAPING``.

    Raises:
        RequestError: a value is out of range.
    """

    stated: Mapping[str, Any] = field(default_factory=dict)
    """Field of ``SamplingParams`` -> value."""
    fallback: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """Where they come from, for people; empty where there are none."""

    def __post_init__(self) -> None:
        for values in (self.stated, self.fallback):
            SamplingParams(**values)

    def params(self, given: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> SamplingParams:
        """The parameters of a request.

        Args:
            given: its fields, those left out not among them.
            own: defaults of whoever asks; the model's come first.

        Raises:
            RequestError: a value is out of range.
        """
        values = {**(own or {}), **self.stated, **given}
        most, least = values.get("max_tokens"), given.get("min_tokens")
        if "max_tokens" not in given and isinstance(most, int) and isinstance(least, int):
            # A default never makes a request contradict itself.
            values["max_tokens"] = max(most, least)
        if given.get("use_beam_search") or given.get("beam_width") is not None:
            # Nothing is drawn, so that no default says how.
            values = {name: value for name, value in values.items() if name not in SHAPING or name in given}
        elif not any(name in values for name in SHAPING):
            values |= self.fallback
        return SamplingParams(**values)

    def sentence(self) -> str:
        """What a request gets that leaves everything out, for people."""
        values = {**self.fallback, **self.stated}
        if not values:
            return "Sampling, where a request does not say: temperature 1, from all tokens."
        shown = ", ".join(f"{name} {value:g}" for name, value in values.items())
        return f"Sampling, where a request does not say: {shown} ({self.source})."
