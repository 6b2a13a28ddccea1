"""Errors in the form that a route's clients read: OpenAI's, or that of the API which the path belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Status -> ``error.type``; of others "api_error"."""


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_for(path: str, body: Mapping[str, Any], status: int) -> Mapping[str, Any]:
    """An error's body as the clients of a path read it; ``body``: in OpenAI's form."""
    for prefix, told in _FORMS.items():
        if path == prefix or path.startswith(f"{prefix}/"):
            return told(body, status)
    return body


def anthropic_error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """The same in Anthropic's form."""
    kind = _ANTHROPIC_KINDS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": body["error"]["message"]}, "request_id": None}


def ollama_error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """The same in Ollama's form."""
    return {"error": body["error"]["message"]}


_FORMS: dict[str, Callable[[Mapping[str, Any], int], dict[str, Any]]] = {
    "/v1/messages": anthropic_error,
    "/api": ollama_error,
}
"""Path that routes lie at or below -> the form of their errors."""
