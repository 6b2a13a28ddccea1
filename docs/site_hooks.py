"""Hooks of the documentation site (mkdocs.yml): pages that are made from what lies elsewhere in the repository."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FROM_ROOT = {"architecture.md": "ARCHITECTURE.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Page of the site -> the document at the repository's root that it shows."""
OPTIONS_MARK = "<!-- options of the engine -->"
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that have no file below docs/."""
    from mkdocs.structure.files import File

    made = {page: (ROOT / name).read_text(encoding="utf-8") for page, name in FROM_ROOT.items()}
    made["decisions/README.md"] = decision_list()
    made["reference/commands.md"] = "# Commands\n\n" + "\n".join(command_pages())
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to where a document is on the site; what is not on it is named by its path in the repository."""
    source = page.file.src_uri
    folder = posixpath.dirname(FROM_ROOT.get(source, posixpath.join("docs", source)))
    pages = {path: made for made, path in FROM_ROOT.items()}

    def led(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path.startswith("docs/") and files.get_file_from_path(path.removeprefix("docs/")) is not None:
            place = path.removeprefix("docs/")
        elif path in pages:
            place = pages[path]
        elif (ROOT / path).exists():
            return f"{text} (`{path}`)" if text.strip("`") != path else f"`{path}`"
        else:
            return found[0]
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(source) or '.')}{anchor})"

    return LINK.sub(led, markdown.replace(OPTIONS_MARK, "\n".join(option_rows())))


def option_rows() -> Iterator[str]:
    """A table of the engine's options, from their declaration."""
    from headstart.common.option_values import describe
    from headstart.common.options import declared
    from headstart.entrypoints.engine_options import AsyncEngineOptions

    yield "| option | may be | default | meaning | also called |"
    yield "|---|---|---|---|---|"
    for each in declared(AsyncEngineOptions):
        kind = ", ".join(f"`{choice}`" for choice in each.choices) if each.choices is not None else describe(each.hint)
        bounds = f"; must {each.option.range}" if each.option.range else ""
        names = ", ".join(f"`{name}`" for name in (*each.option.names, *each.option.elsewhere))
        default = getattr(each.default, "value", each.default)
        meaning = each.option.help.replace("|", "\\|")
        yield f"| `{each.name}` | {kind}{bounds} | `{default!r}` | {meaning} | {names} |"


def decision_list() -> str:
    """A page that lists the decision records."""
    rows = []
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        rows.append(f"- [{title}]({path.name})")
    return "# Decisions\n\nWhat was chosen, against what, and why.\n\n" + "\n".join(rows) + "\n"


def command_pages() -> Iterator[str]:
    """A section for each command, from the command line itself."""
    import click
    import typer

    from headstart.cli.main import app

    group: Any = typer.main.get_command(app)
    context = click.Context(group, info_name="headstart")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command.hidden:
            continue
        yield f"## headstart {name}\n\n{_plain(command.help or '')}\n"
        rows = []
        for parameter in command.params:
            help_text = _plain(getattr(parameter, "help", None) or "").replace("\n", " ").replace("|", "\\|")
            names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
            if not getattr(parameter, "hidden", False) and names:
                rows.append(f"| {names} | {help_text} |")
        if rows:
            yield "| option | |\n|---|---|\n" + "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """Help as Markdown: rich's marks gone, angle brackets kept as text."""
    return re.sub(r"\[/?(?:bold|dim|italic|[a-z]+ ?[a-z]*)\]", "", text).replace("\b", "").replace("<", "\\<").strip()
