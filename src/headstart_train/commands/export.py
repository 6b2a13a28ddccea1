"""``headstart export``: a head in the format that another server reads."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import Named
from headstart.cli.option_groups import with_groups
from headstart.drafting.method import brought_head_files, head_files
from headstart.errors import ConfigError
from headstart_train.commands import folders


def export_formats() -> Mapping[str, tuple[str, ...]]:
    """Formats of other programs -> kinds of heads that may be written in them."""
    found: dict[str, list[str]] = {}
    for files in (*head_files(), *brought_head_files()):
        for kind, formats in files.exports.items():
            for name in formats:
                found.setdefault(name, []).append(kind)
    return {name: tuple(kinds) for name, kinds in found.items()}


class FormatChoice(StrEnum):
    """Formats of draft heads that the methods' folders know how to write."""

    vars().update({name.upper(): name for name in export_formats()})


@with_groups
def export(
    *,
    head: Annotated[Path, typer.Argument(help="Directory of the head, in any format.", metavar="HEAD")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Directory to write.", metavar="DIR", callback=folders.new_folder)
    ],
    to: Annotated[
        FormatChoice,
        typer.Option(
            help="For kinds of heads: "
            + "; ".join(f"{name} for {', '.join(kinds)}" for name, kinds in export_formats().items())
            + ". vLLM reads speculators; SGLang and SpecForge have forms of their own, as they number the target's "
            "layers otherwise. vLLM 0.33 has dropped Medusa: train another head for it.",
        ),
    ],
    engine: Named,
    as_json: options.Json = False,
) -> None:
    """Write a draft head in the format of another project.

    Examples:

        headstart export heads/eagle3 --to speculators --out export/eagle3

        headstart export heads/eagle3 --to sglang --out export/eagle3-sglang

        headstart export heads/medusa --to medusa --out export/medusa
    """
    import torch

    from headstart.cli.json_output import print_json
    from headstart.drafting.head_files.loading import load_head
    from headstart.drafting.heads.tables import TargetTables
    from headstart.models.checkpoint import open_checkpoint
    from headstart.models.weight_loading import load_decoder
    from headstart_train.files.heads import export_head

    config, weights = load_decoder(open_checkpoint(str(engine.model), engine.revision), torch.float32)
    loaded = load_head(head, config)
    try:
        left_out = export_head(
            loaded, to.value, out, TargetTables(weights.embedding, weights.head.weight), str(engine.model)
        )
    except OSError as error:
        raise ConfigError(f"--out is {out}, which cannot be written: {error.strerror}.") from error
    if as_json:
        print_json({"directory": str(out), "format": to.value, "left_out": left_out})
        return
    typer.echo(f"{out}: written as {to.value}{f', without {left_out}' if left_out else ''}.")
