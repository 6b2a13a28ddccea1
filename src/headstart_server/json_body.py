"""A request's body as JSON values, read more strictly than Python does: what cannot be meant is refused here."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Coroutine
from itertools import accumulate
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from headstart.errors import RequestError, require_utf8

MAX_DEPTH = 128
"""Levels of objects and lists inside each other; whatever walks over a body later has room for that many."""
MAX_LISTS = 1 << 16
"""Lists and objects in one body: two megabytes could hold a million, which take seconds to make."""
_MAX_DIGITS = 308
"""Of an integer: what has more is no finite float."""
_ASIDE_BYTES = 1 << 16
"""A body beyond this is read on a thread, so that other requests go on meanwhile."""
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""One that does not end goes on to the body's end."""
_LONG_INTEGER = re.compile(rf"(?<!\d)\d{{{_MAX_DIGITS + 1}}}")
_BRACKET = re.compile(r"[\[\]{}]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""As JSON spells it; as bytes it is no UTF-8."""
_HALF = re.compile("[\ud800-\udfff]")
_Place = tuple["_Place", "str | int"] | None
"""Where a value is: the place of what holds it, and its name or number there."""


class BadBody(HTTPException):
    """A body that holds something that no request can mean; ``field``: where, if that is known."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(400, str(error))
        self.field = error.field


class JsonRoute(APIRoute):
    """A route that reads its bodies with ``read_json``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As in FastAPI."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return strict


class _JsonRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return read_json(body) if len(body) < _ASIDE_BYTES else await asyncio.to_thread(read_json, body)
        except RequestError as error:
            raise BadBody(error) from error


def read_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        json.JSONDecodeError: it is no JSON.
        RequestError: it is no UTF-8, is nested too deeply, holds too many lists and objects, or holds a name twice,
            half of a surrogate pair or a number that is not finite.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 ({error.reason} at byte {error.start}).") from None
    bare = _STRING.sub("", text)
    _check_structure(bare)
    # A function for each number would take most of the time.
    integer = _integer if _LONG_INTEGER.search(bare) else None
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_real, parse_int=integer
        )
    except RecursionError:
        raise RequestError(_too_deep()) from None
    if _SURROGATE.search(text):
        _check_texts(value)
    return value


def _check_structure(bare: str) -> None:
    """Refuse what is too deep or in too many pieces, before anything is made of it; ``bare``: less its texts."""
    steps = (1 if bracket in "[{" else -1 for bracket in _BRACKET.findall(bare))
    if max(accumulate(steps), default=0) > MAX_DEPTH + 1:
        raise RequestError(_too_deep())
    lists = bare.count("[") + bare.count("{")
    if lists > MAX_LISTS:
        raise RequestError(f"the body holds {lists} lists and objects; give at most {MAX_LISTS}.")


def _check_texts(value: Any) -> None:
    """Refuse half of a surrogate pair in any text or name, by the field that it is in."""
    stack: list[tuple[Any, _Place]] = [(value, None)]
    while stack:
        value, place = stack.pop()
        if isinstance(value, str):
            _check_text(value, place)
        elif isinstance(value, dict):
            for name, item in value.items():
                _check_text(name, place)
                stack.append((item, (place, name)))
        elif isinstance(value, list):
            stack += [
                (item, (place, number)) for number, item in enumerate(value) if isinstance(item, (str, dict, list))
            ]


def _check_text(text: str, place: _Place) -> None:
    if _HALF.search(text):
        parts = list[str]()
        while place is not None:
            place, part = place
            parts.append(str(part))
        require_utf8(text, ".".join(reversed(parts)) or "the body")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RequestError(f"{twice:.100} is given twice in one object; give it once.", twice[:100])
    return held


def _constant(name: str) -> float:
    raise RequestError(f"the body holds {name}, which is not JSON; give a finite number.")


def _real(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise RequestError(f"the body holds {digits:.40}, which is no finite number here; give a smaller one.")
    return number


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise RequestError(f"the body holds an integer of {len(digits)} digits; give one of at most {_MAX_DIGITS}.")
    return int(digits)


def _too_deep() -> str:
    return f"the body is nested more than {MAX_DEPTH} levels deep; flatten it."
