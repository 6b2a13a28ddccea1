"""``headstart native``: the native pass, compiled before it is needed."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headstart.backends.native.isa import INSTRUCTION_SETS, InstructionSet
from headstart.cli import options
from headstart.errors import ConfigError, HeadstartError

_NAMES = [isa.name for isa in INSTRUCTION_SETS]


def native(
    isa: Annotated[
        list[str] | None,
        typer.Option(
            help="Compile for this instruction set, whether or not this processor has it; may be repeated. Left out: "
            "the fastest one that this processor has.",
            metavar="|".join(_NAMES),
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compile the native pass ahead of its first use, and say where it lies.

    It is kept in the folder `headstart` of XDG_CACHE_HOME (`~/.cache` if left out) and needs no compiler from then on,
    so an image can be made that has none. A processor takes the fastest instruction set that it has.

    Examples:

        headstart native

        headstart native --isa avx512 --isa avxvnni --isa avx2
    """
    named = [_named(name) for name in isa or ()]

    from headstart.backends.native.loader import load_library, usable_sets

    for each in named:
        _make(each, as_json)
    if named:
        return
    for each in usable_sets():
        _make(each, as_json)
        if load_library(each.name) is not None:
            return
    raise HeadstartError(
        "the native pass does not run here, by its processor or by HEADSTART_NATIVE; name an instruction set with "
        "--isa to compile for other machines."
    )


def _named(name: str) -> InstructionSet:
    for isa in INSTRUCTION_SETS:
        if isa.name == name:
            return isa
    raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, _NAMES))}.", param_hint="--isa")


def _make(isa: InstructionSet, as_json: bool) -> None:
    """Compile a library that is not there yet."""
    from headstart.backends.native.loader import compile_library, find_library

    path, how, seconds = find_library(isa), "there already", None
    if path is None:
        typer.echo(f"Compiling for {isa.name}, which takes about a minute.", err=True)
        began = time.perf_counter()
        try:
            path = compile_library(isa)
        except ConfigError as error:
            # No option is at fault.
            raise HeadstartError(str(error)) from error
        seconds = time.perf_counter() - began
        how = f"compiled in {seconds:.0f} s"
    if as_json:
        from headstart.cli.json_output import print_json

        print_json({"isa": isa.name, "path": str(path), "compiled_in_seconds": seconds})
        return
    typer.echo(f"{isa.name}: {path} ({how})")
