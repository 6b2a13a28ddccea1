"""What ``--help`` shows: a page of the options that are asked for most and the names of all others, and with
``--help-all`` every option explained. Names are never cut or broken, whatever the width: they can be searched for.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headstart.cli.other_programs import own_names
from headstart.cli.wording import shown_type, styled

_NARROWEST, _WIDEST = 60, 100
_COLUMN, _SHORT_COLUMN = 28, 36
"""Where explanations begin, at most; a longer name has a line of its own."""
_FEW = 14
"""So many options are all explained at once."""
_EXAMPLES = 2
"""Of the short page."""
OPTIONS = "Options"


def page(command: Any, context: Any, whole: bool, listed: Mapping[str, tuple[str, str]] | None = None) -> str:
    """The help of a command.

    Args:
        whole: explain every option.
        listed: the commands below it: name -> (panel, line of explanation).
    """
    width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    prose, examples = _description(command.help or "", width, whole)
    parts = [f"{styled('Usage:', bold=True)} {usage}", *prose, *examples]
    shown = [param for param in command.get_params(context) if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option"]
    if arguments:
        parts.append(_section("Arguments", [_argument(param, context) for param in arguments], width, not whole))
    for panel in dict.fromkeys(panel for panel, _ in (listed or {}).values()):
        rows = [(name, line) for name, (its_panel, line) in (listed or {}).items() if its_panel == panel]
        parts.append(_section(panel, rows, width))
    if whole:
        for panel in dict.fromkeys(map(_panel, options)):
            rows = [_option(param, context, whole) for param in options if _panel(param) == panel]
            parts.append(_section(panel, rows, width))
        return "\n\n".join(parts)
    few = len(options) <= _FEW
    first = [param for param in options if few or not set(_first(command)).isdisjoint(param.opts)]
    others = [param for param in options if param not in first]
    parts.append(_section(OPTIONS, [_option(param, context, whole) for param in first], width, brief=True))
    without = [part for part in parts if part not in examples]
    if not others:
        return _fitting(["\n\n".join(each) for each in (parts, without)])
    title = styled(f"{len(others)} more options", bold=True)
    named, counted = f"{title}, which --help-all explains:\n{_names(others, width)}", f"{title}: see --help-all."
    return _fitting(["\n\n".join(each) for each in ((*parts, named), (*parts, counted), (*without, counted))])


def _description(text: str, width: int, whole: bool) -> tuple[list[str], list[str]]:
    """Paragraphs and examples; of a short page the first ones."""
    paragraphs = [part for part in inspect.cleandoc(text).split("\n\n") if part.strip()]
    prose = [part for part in paragraphs if not part.startswith(" ") and part.strip() != "Examples:"]
    examples = [textwrap.indent(inspect.cleandoc(part), "  ") for part in paragraphs if part.startswith(" ")]
    told = [textwrap.fill(" ".join(part.split()), width) for part in (prose if whole else prose[:1])]
    shown = examples if whole else examples[:_EXAMPLES]
    return told, ["\n".join([styled("Examples:", bold=True), *shown])] if shown else []


def _names(params: Sequence[Any], width: int) -> str:
    """All names of options, one behind the other."""
    return textwrap.fill(
        "  ".join("|".join((*own_names(param.opts), *own_names(param.secondary_opts))) for param in params),
        width,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fitting(pages: Sequence[str]) -> str:
    """The first, and fullest, page that the terminal has room for; a file or a pipe has room for any."""
    rows = shutil.get_terminal_size().lines
    fitting = [each for each in pages if not sys.stdout.isatty() or each.count("\n") + 2 <= rows]
    return fitting[0] if fitting else pages[-1]


def _first(command: Any) -> Iterable[str]:
    return (*getattr(command, "first", ()), "--help", "--help-all")


def _panel(param: Any) -> str:
    return getattr(param, "rich_help_panel", None) or OPTIONS


def _argument(param: Any, context: Any) -> tuple[str, str]:
    said = " ".join((param.help or "").split())
    choices = shown_type(param, context) or ""
    return str(param.metavar or param.make_metavar(context)), f"{said} {choices}" if "|" in choices else said


def _option(param: Any, context: Any, whole: bool) -> tuple[str, str]:
    names = sorted(own_names(param.opts), key=lambda name: name.startswith("--"))
    left = ", ".join(names)
    if param.secondary_opts:
        left += f" / {', '.join(own_names(param.secondary_opts))}"
    if param.metavar:
        left += f" {param.metavar}"
    record = param.get_help_record(context)
    said = " ".join((record[1] if record else param.help or "").split())
    elsewhere = [name for name in (*param.opts, *param.secondary_opts) if name not in own_names(param.opts)]
    elsewhere = [name for name in elsewhere if name not in own_names(param.secondary_opts)]
    return left, f"{said} Also: {', '.join(elsewhere)}." if whole and elsewhere else said


def _brief(text: str, room: int) -> str:
    """As much of an explanation as a line has room for, up to the end of a sentence or of a part of one; a first part
    that is longer goes on in the next line."""
    told = text.partition(" [")[0]
    ends = [match.start() for match in re.finditer(r"[.;:,](?= |$)| \(", told)]
    # A list that is cut short would look whole.
    ends = [end for end in ends if told[end] in ".;" or not re.search(r"[:;(]", told[:end])]
    fitting = [end for end in ends if end < room] or ends[:1]
    sentences = [end for end in fitting if told[end] == "."]
    return f"{told[: max(sentences or fitting)]}." if fitting else told


def _section(title: str, rows: Iterable[tuple[str, str]], width: int, brief: bool = False) -> str:
    lines = [styled(f"{title}:", bold=True)]
    rows = list(rows)
    column = min(max(len(left) for left, _ in rows) + 4, _SHORT_COLUMN if brief else _COLUMN)
    for left, said in rows:
        said = _brief(said, width - column) if brief else said
        wrapped = textwrap.wrap(said, width - column, break_long_words=False, break_on_hyphens=False) or [""]
        if len(left) + 4 > column:
            lines += [f"  {left}", *(f"{'':{column}}{line}" for line in wrapped if line)]
        else:
            lines += [f"  {left:{column - 2}}{wrapped[0]}".rstrip(), *(f"{'':{column}}{line}" for line in wrapped[1:])]
    return "\n".join(lines)
