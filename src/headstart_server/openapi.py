"""The OpenAPI document: a server has it at ``/openapi.json``; ``python -m headstart_server.openapi`` prints it."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from headstart_server.client_routes import router as client_router
from headstart_server.routes import added_routes, router

_DESCRIPTION = (
    "The OpenAI API, and Anthropic's and Ollama's, with lossless speculative decoding. Unknown fields of a request are "
    "ignored, unless that would give a wrong answer. Errors have the form of the route's API. API keys, if the server "
    "has any, are bearer tokens, or stand in x-api-key."
)


def describe(app: FastAPI) -> dict[str, Any]:
    """The document of an application's routes."""
    document = get_openapi(
        title="Headstart",
        version=version("headstart"),
        summary="An OpenAI-compatible server with speculative decoding",
        description=_DESCRIPTION,
        routes=app.routes,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            # Bodies that do not validate get status 400 in OpenAI's form, not FastAPI's 422.
            operation["responses"].pop("422", None)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]
    exact: dict[str, Any] = _with_integers(document)
    return exact


def _with_integers(value: Any) -> Any:
    """Turn bounds that FastAPI made floats back into integers: 2**64 has more digits than a float shows."""
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def document() -> dict[str, Any]:
    """The document; it is the same whatever a server serves."""
    app = FastAPI()
    for each in (router, client_router, *added_routes()):
        if isinstance(each, APIRouter):
            app.include_router(each)
    return describe(app)


if __name__ == "__main__":
    print(json.dumps(document(), indent=2))
