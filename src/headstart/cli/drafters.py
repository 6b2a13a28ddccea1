"""``headstart drafters``: who can guess, and what each may be told."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from dataclasses import MISSING, Field, asdict, fields
from typing import Annotated, Any, get_type_hints

import typer


def drafters(
    name: Annotated[str | None, typer.Argument(help="Show the options of this one.", metavar="NAME")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="List what could guess for this model: found, known but absent (with what to download), or refused.",
            metavar="NAME|PATH",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the drafters, show one of them with its options, or list who could guess for a model.

    Examples:

        headstart drafters

        headstart drafters ngram

        headstart drafters --model ./my-model

        headstart generate "Once upon a time" --drafter ngram --drafter-option max_order=3
    """
    from headstart.drafting.registry import available_drafters, drafter_info

    if model is not None:
        if name is not None:
            raise typer.BadParameter("it lists all that could guess; leave NAME out.", param_hint="--model")
        _print_candidates(model, as_json)
        return
    if name is None:
        listed = available_drafters().values()
        rows = [{"name": info.name, "summary": info.summary, "source": info.source} for info in listed]
        _print_json(rows) if as_json else _print_table(("name", "how it guesses", "source"), rows)
        return
    info = drafter_info(name)
    options = _options(info.name)
    if as_json:
        _print_json({"name": info.name, "summary": info.summary, "source": info.source, "options": options})
        return
    typer.echo(f"{info.name}: {info.summary}")
    typer.echo(f"Source: {info.source}\n")
    if info.untaught:
        typer.echo(
            f"Untaught, it guesses with {info.untaught}: that needs teaching, and else it is slower than none.\n"
        )
    if options:
        shown = [{**option, "default": json.dumps(option["default"])} for option in options]
        _print_table(("option", "type", "default", "meaning"), shown)
        example = next((option for option in options if option["default"] is not None), options[0])
        typer.echo(f"\nGive them as --drafter-option {example['name']}={json.dumps(example['default'])}.")
    else:
        typer.echo("It has no options.")


def _print_candidates(model: str, as_json: bool) -> None:
    from headstart.cli.progress import Activity

    with Activity() as activity:
        activity.show(f"Looking for who could guess for {model}")
        from headstart.common.memory import readable
        from headstart.entrypoints.outline import Outline
        from headstart.loading.candidates import candidates

        outline = Outline.open(model)
        found = candidates(outline.checkpoint, outline.config, outline.tokenizer)
    if as_json:
        _print_json([asdict(each) for each in found])
        return
    rows = [
        {
            "standing": each.standing,
            "drafter": each.drafter or "–",
            "size": readable(each.nbytes) if each.nbytes else "–",
            "where": each.where,
            "said": each.said + (f"; it runs in {each.runs_in}" if each.runs_in else ""),
        }
        for each in found
    ]
    _print_table(("standing", "drafter", "size", "where", "what"), rows)


def _options(name: str) -> list[dict[str, Any]]:
    from headstart.drafting.registry import drafter_options

    options_class = drafter_options(name)
    types = get_type_hints(options_class)
    meanings = _field_docstrings(options_class)
    return [
        {
            "name": field.name,
            "type": inspect.formatannotation(types[field.name]),
            "default": _default(field),
            "help": meanings.get(field.name, ""),
        }
        for field in fields(options_class)
    ]


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _field_docstrings(options_class: type[Any]) -> dict[str, str]:
    """Field -> the string that stands below it in the source, base classes included; none where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(options_class.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        body = ast.parse(source).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, after in zip(body.body, body.body[1:], strict=False):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.replace("``", "").split())
    return found


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _print_table(titles: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from headstart.errors import printable

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=title in ("name", "option"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row.values()))
    Console(highlight=False).print(table)
