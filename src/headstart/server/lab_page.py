"""The lab page at ``/``: its static files, and the headers under which browsers show them."""

from __future__ import annotations

from fastapi import FastAPI, Response

from headstart.server.lab_files import MEDIA_TYPES, page_files

HEADERS = {
    # The page loads nothing from other servers, and nothing in a model's text can become a script or a style.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Serve the page's files, which are read only once."""
    for url, path in page_files().items():
        _add_file(app, url, path.read_bytes(), MEDIA_TYPES[path.suffix])


def _add_file(app: FastAPI, url: str, body: bytes, media_type: str) -> None:
    @app.get(url, include_in_schema=False)
    async def file() -> Response:
        return Response(body, media_type=media_type, headers=HEADERS)
