"""What the whole output of a request must be: JSON, a regular expression's language, or one of a few texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.common.other_names import FOREIGN_STRUCTURES, passes_over
from headstart.errors import RequestError, require_utf8

_FIELD = "structured_outputs"
_KINDS = ("json", "json_object", "regex", "choice", "grammar")


@passes_over(FOREIGN_STRUCTURES)
@dataclass(frozen=True)
class StructuredOutputsParams:
    """Names and meaning are vLLM's; exactly one field is given. The output ends where the structure is complete."""

    json: str | bool | Mapping[str, Any] | None = None
    """A JSON schema, as text or as what JSON reads; kept as text. Keywords that cannot be enforced are refused."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """Matched as a whole, in the syntax of Rust's regex crate; \\d means ASCII digits. No look-around."""
    choice: tuple[str, ...] | None = None
    """One of these texts."""
    grammar: str | None = None
    """A grammar in the syntax of Lark, as llguidance reads it; ``%json`` and the schema behind it end a line."""

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if not self.json_object:
            given.remove("json_object")
        if len(given) != 1:
            raise RequestError(
                f"{_FIELD} names {' and '.join(given) or 'nothing'}; give exactly one of {', '.join(_KINDS)}.", _FIELD
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.regex is not None and not isinstance(self.regex, str):
            raise RequestError(f"regex is {self.regex!r}; it must be a string.", _FIELD)
        if self.grammar is not None and not isinstance(self.grammar, str):
            raise RequestError(f"grammar is {self.grammar!r:.40}; it must be a string.", _FIELD)
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for text in (self.regex or "", self.grammar or "", *(self.choice or ())):
            require_utf8(text, _FIELD)

    @property
    def size(self) -> int:
        """Characters of what was asked for."""
        written = (str(self.json or ""), self.regex or "", self.grammar or "")
        return sum(map(len, written)) + sum(map(len, self.choice or ()))


GuidedDecodingParams = StructuredOutputsParams
"""vLLM's former name."""


def _schema_text(schema: str | bool | Mapping[str, Any]) -> str:
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"json is no JSON schema: {str(error).rstrip('.')}.", _FIELD) from None
    require_utf8(text, _FIELD)
    return text


def _choices(choices: Sequence[str]) -> tuple[str, ...]:
    if isinstance(choices, str) or not all(isinstance(text, str) and text for text in choices) or not choices:
        raise RequestError("choice must hold texts, at least one and none of them empty.", _FIELD)
    return tuple(choices)
