"""A request's body as JSON values, read more strictly than Python does: what cannot be meant is refused here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute

from headstart.errors import RequestError, require_utf8

MAX_DEPTH = 128
"""Levels of objects and lists inside each other; whatever walks over a body later has room for that many."""
_MAX_DIGITS = 308
"""Of an integer: what has more is no finite float."""


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
        try:
            return read_json(await self.body())
        except RequestError as error:
            raise BadBody(error) from error


def read_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        json.JSONDecodeError: it is no JSON.
        RequestError: it is no UTF-8, is nested too deeply, or holds a name twice, half of a surrogate pair or a number
            that is not finite.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 ({error.reason} at byte {error.start}).") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_real, parse_int=_integer
        )
    except RecursionError:
        raise RequestError(_too_deep()) from None
    for name, held, depth in _texts(value, "", 0):
        if depth > MAX_DEPTH:
            raise RequestError(_too_deep(), name)
        require_utf8(held, name)
    return value


def _texts(value: Any, where: str, depth: int) -> Iterator[tuple[str, str, int]]:
    """Every text in a value, and every name: the field that it is in, itself, and how deep it is; and whatever is too
    deep."""
    stack: list[tuple[Any, str, int]] = [(value, where, depth)]
    while stack:
        value, where, depth = stack.pop()
        if isinstance(value, str):
            yield where, value, depth
        elif not isinstance(value, (dict, list)):
            continue
        elif depth > MAX_DEPTH:
            yield where, "", depth
        elif isinstance(value, dict):
            for name, item in value.items():
                yield where or "the body", name, depth
                stack.append((item, f"{where}.{name}" if where else name, depth + 1))
        else:
            stack += [
                (item, f"{where}.{place}", depth + 1)
                for place, item in enumerate(value)
                if isinstance(item, (str, dict, list))
            ]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise RequestError(f"{twice} is given twice in one object; give it once.", twice)
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
