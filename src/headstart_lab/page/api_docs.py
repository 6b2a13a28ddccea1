"""The page at ``/docs``: the OpenAPI document for people, without scripts or anything from other servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from jinja2 import Environment, StrictUndefined

_FOLDER = Path(__file__).parent / "api_docs_files"
_STYLE = "/docs/page.css"
HEADERS = {
    # The page loads nothing from other servers, and nothing in a model's text can become a script or a style.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""Under which browsers show a page of the server's own."""


def add_docs(app: FastAPI) -> Collection[str]:
    """Serve the page (entry point group ``headstart.routes``); it is made with the first request.

    Returns:
        Its paths, which need no key: they say nothing of who is served, and browsers send none.
    """

    made = cache(lambda: render(app.openapi()))

    async def page(request: Request) -> Response:
        return Response(made(), media_type="text/html; charset=utf-8", headers=HEADERS)

    async def style(request: Request) -> Response:
        return Response((_FOLDER / "page.css").read_bytes(), media_type="text/css; charset=utf-8", headers=HEADERS)

    app.add_route("/docs", page, include_in_schema=False)
    app.add_route(_STYLE, style, include_in_schema=False)
    return ("/docs", _STYLE)


def render(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML."""
    template = (_FOLDER / "page.html").read_text(encoding="utf-8")
    objects = document["components"]["schemas"]
    operations = [
        _operation(path, method, operation, objects)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return (
        Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        .from_string(template)
        .render(
            info=document["info"],
            operations=operations,
            objects=[
                {"name": name, "text": schema.get("description", ""), "fields": _fields(schema)}
                for name, schema in objects.items()
            ],
        )
    )


def _operation(path: str, method: str, operation: Mapping[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = _name(content.get("schema", {}))
    return {
        "path": path,
        "method": method.upper(),
        "id": operation["operationId"],
        "description": operation["description"],
        "parameters": [
            {
                "name": each["name"],
                "required": each.get("required", False),
                "type": _type(each["schema"]),
                "text": each.get("description", f"in the {each['in']}"),
            }
            for each in operation.get("parameters", ())
        ],
        "body": body,
        "fields": _fields(objects[body]) if body else [],
        "answers": [
            {"status": status, "text": answer["description"], "schema": _answered(answer)}
            for status, answer in operation["responses"].items()
        ],
    }


def _fields(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    required = schema.get("required", ())
    return [
        {"name": name, "required": name in required, "type": _type(each), "text": each.get("description", "")}
        for name, each in schema.get("properties", {}).items()
    ]


def _answered(answer: Mapping[str, Any]) -> str:
    schemas = [each.get("schema", {}) for each in answer.get("content", {}).values()]
    return next(filter(None, map(_name, schemas)), "")


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "$ref" in schema:
        return _name(schema)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return " or ".join(dict.fromkeys(map(_type, _without_null(schema[keyword]))))
    if "enum" in schema or "const" in schema:
        return " or ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))


def _without_null(schemas: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [schema for schema in schemas if schema.get("type") != "null"]


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
