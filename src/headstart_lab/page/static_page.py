"""A copy of the lab page that needs no server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headstart_lab.page.files import page_files
from headstart_lab.page.rules_at_work import rules_beforehand

_SCRIPTS, _RECORDED = "/lab/scripts/", "/lab/recorded/runs.json"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./([^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:const|class|function\*?) (\w+))", re.MULTILINE)
_LINK = re.compile(r' *<link rel="stylesheet" href="([^"]+)">\n')
_SCRIPT = re.compile(r' *<script type="module" src="([^"]+)"></script>\n')


def recorded_runs() -> list[dict[str, Any]]:
    """The runs that come with the page (``headstart_lab.page.recording`` makes them)."""
    runs: list[dict[str, Any]] = json.loads(_text(_RECORDED))["runs"]
    return runs


def static_page(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """File name -> text of a page that plays ``runs``, from any static host or straight from a folder.

    Browsers load neither modules nor data from ``file:`` addresses, so the modules become one plain script and the runs
    stand in the page itself, as does what the biased rules say.
    """
    page = _text("/")
    styles = _LINK.findall(page)
    (entry,) = _SCRIPT.findall(page)
    head = (
        '    <link rel="stylesheet" href="lab.css">\n'
        f"{_held('recorded-runs', {'runs': runs})}{_held('biased-rules', rules_beforehand())}"
        '    <script src="lab.js" defer></script>\n'
    )
    page = _SCRIPT.sub(lambda _: head, _LINK.sub("", page)).replace("/lab/icon.svg", "icon.svg")
    return {
        "index.html": page,
        "lab.css": "\n".join(map(_text, styles)),
        "lab.js": _bundled(entry.removeprefix(_SCRIPTS)),
        "icon.svg": _text("/lab/icon.svg"),
    }


def _held(name: str, data: object) -> str:
    """Data in the page."""
    # "<" would let a run's text end the element.
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    return f'    <script type="application/json" id="{name}">{text}</script>\n'


def _bundled(entry: str) -> str:
    """A module and what it imports as one script: each a function that returns what it exports."""
    return '"use strict";\nconst modules = {};\n' + "".join(_modules(entry, set()))


def _modules(name: str, seen: set[str]) -> Iterator[str]:
    seen.add(name)
    source = _text(_SCRIPTS + name)
    for _, imported in _IMPORT.findall(source):
        if imported not in seen:
            yield from _modules(imported, seen)
    body = _IMPORT.sub(lambda found: f'const {found[1].replace(" as ", ": ")} = modules["{found[2]}"];\n', source)
    body = _EXPORT.sub(lambda found: found[1], body)
    exports = ", ".join(exported for _, exported in _EXPORT.findall(source))
    yield f'modules["{name}"] = (() => {{\n{body}return {{ {exports} }};\n}})();\n'


def _text(url: str) -> str:
    return page_files()[url].read_text(encoding="utf-8")
