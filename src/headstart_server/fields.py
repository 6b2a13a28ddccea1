"""What fields of requests' bodies may be: kinds that several bodies share, and what is said of wrong values."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from headstart.common.options import option_of
from headstart.drafting.base import SpeculationParams
from headstart_server.refused_fields import OTHER_NAMES

Count = Annotated[int, Field(ge=0, le=1 << 20)]
# Only documented here, and checked in the code: pydantic's messages would not say what to do instead.
Some = Field(json_schema_extra={"minItems": 1})
TokenId = Annotated[int, Field(json_schema_extra={"minimum": 0})]
Item = TypeVar("Item")
ListOf = Annotated[list[Item], Field(fail_fast=True)]
"""Refused at its first wrong item: a complaint about each would take seconds and a gigabyte."""


def one_of(forms: str) -> WrapValidator:
    """Name all allowed forms when a value has none of them, instead of complaining about the first one."""

    def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise PydanticCustomError("form", "It must be {forms}", {"forms": forms}) from None

    return WrapValidator(check)


Choices = Annotated[ListOf[Annotated[str, Field(json_schema_extra={"minLength": 1})]] | None, Some]
_MOST_ENTRIES = 1024
"""Of an object whose values are looked at one by one; for the sake of time alone."""


def at_most(entries: int) -> BeforeValidator:
    """Refuse an object of more entries before each of them is looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > entries:
            raise PydanticCustomError(
                "too_many", "It has {count} entries; give at most {most}", {"count": len(value), "most": entries}
            )
        return value

    return BeforeValidator(check)


def also_called(own: str) -> Any:
    """An optional field that goes by the names of other servers, too."""
    others = [name for name, meant in OTHER_NAMES.items() if meant == own]
    return Field(default=None, validation_alias=AliasChoices(own, *others))


def _biases(value: Any) -> Any:
    """A bias for each token as llama.cpp's pairs have it; false bans a token."""
    if not isinstance(value, list):
        return value
    if len(value) > _MOST_ENTRIES:
        raise PydanticCustomError("too_many", "It has {count} pairs; give fewer", {"count": len(value)})
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int]
    if len(pairs) < len(value):
        raise PydanticCustomError("form", "It must be an object of token ids and biases, or a list of such pairs")
    return {str(token): -math.inf if bias is False else bias for token, bias in pairs}


Biases = Annotated[dict[str, float] | None, at_most(_MOST_ENTRIES), BeforeValidator(_biases)]


class Body(BaseModel):
    """Unknown fields are ignored, as OpenAI's clients expect. Values must have the declared type."""

    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=(), use_attribute_docstrings=True)


def declared(option: str) -> Any:
    """What is said of an option where it is declared."""
    return Field(description=option_of(SpeculationParams, option).option.help)
