"""The lab page at ``/``: static files of this package, and the headers under which browsers show them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fastapi import FastAPI, Response

_FOLDER = Path(__file__).parent / "lab"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    # The page loads nothing from other servers, and nothing in a model's text can become a script or a style.
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@cache
def page_files() -> Mapping[str, Path]:
    """URL path -> file. These need no key: the page itself asks for it and sends it with every request for data."""
    files = (path for path in _FOLDER.rglob("*") if path.suffix in _MEDIA_TYPES)
    found = {f"/lab/{path.relative_to(_FOLDER).as_posix()}": path for path in files}
    return MappingProxyType({"/": found.pop("/lab/index.html"), **found})


def add_page(app: FastAPI) -> None:
    """Serve the page's files, which are read only once."""
    for url, path in page_files().items():
        _add_file(app, url, path.read_bytes(), _MEDIA_TYPES[path.suffix])


def _add_file(app: FastAPI, url: str, body: bytes, media_type: str) -> None:
    @app.get(url, include_in_schema=False)
    async def file() -> Response:
        return Response(body, media_type=media_type, headers=HEADERS)
