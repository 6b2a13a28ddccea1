"""The lab page's static files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


@cache
def page_files() -> Mapping[str, Path]:
    """URL path -> file."""
    files = (path for path in _FOLDER.rglob("*") if path.suffix in MEDIA_TYPES)
    found = {f"/lab/{path.relative_to(_FOLDER).as_posix()}": path for path in files}
    return MappingProxyType({"/": found.pop("/lab/index.html"), **found})
