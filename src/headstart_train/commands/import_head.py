"""``headstart import``: a head that others published, as a folder of Headstart's."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headstart.cli import options
from headstart.cli.asking import Named
from headstart.cli.option_groups import with_groups
from headstart.errors import ConfigError
from headstart_train.commands import folders


class LayerNumbersChoice(StrEnum):
    """What the layer numbers of a head mean."""

    AUTO = "auto"
    INPUTS = "inputs"
    OUTPUTS = "outputs"


@with_groups
def import_(
    *,
    head: Annotated[
        str,
        typer.Argument(
            help="Directory or hub id of the head: SafeAILab's EAGLE, EAGLE-2 or EAGLE-3, speculators' EAGLE-1, "
            "EAGLE-3, P-EAGLE, DFlash or DSpark, DeepSpec's DSpark, z-lab's DFlash, one from SGLang, SpecForge or "
            "ModelOpt (EAGLE-3), or Medusa's.",
            metavar="HEAD",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Directory to write.", metavar="DIR", callback=folders.new_folder)
    ],
    engine: Named,
    head_revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of a head on the hub.", metavar="REV")
    ] = None,
    layer_numbers: Annotated[
        LayerNumbersChoice,
        typer.Option(
            help="What the layers that an EAGLE-3 head names are numbered by. inputs: as vLLM, the layer that reads a "
            "state; outputs: as SGLang, SpecForge and ModelOpt, the layer that writes it. auto: the usual three layers "
            "are known either way, others are vLLM's. A wrong choice costs acceptance, never exactness.",
        ),
    ] = LayerNumbersChoice.AUTO,
    as_json: options.Json = False,
) -> None:
    """Turn a head that was published for vLLM, SGLang or another program into one of Headstart's.

    Drafters read all of these formats as they are. What is imported was checked once, names the target that it belongs
    to, and can be exported and trained on.

    Examples:

        headstart import ./EAGLE3-Llama --model ./Llama --out heads/eagle3

        headstart import ORG/HEAD --model ./Scout --layer-numbers outputs --out heads/scout

        headstart bench --model ./Llama --drafters eagle3:model=heads/eagle3
    """
    from headstart.cli.json_output import print_json
    from headstart.drafting.methods.dflash.head import BlockHead
    from headstart.drafting.methods.eagle.head import EagleHead
    from headstart.models.checkpoint import open_checkpoint
    from headstart.models.weight_loading import config_of
    from headstart_train.files.heads import save_head
    from headstart_train.files.importing import import_head, locate_head, stored_dtype

    checkpoint = open_checkpoint(str(engine.model), engine.revision)
    directory = locate_head(head, head_revision)
    loaded = import_head(directory, config_of(checkpoint), layer_numbers.value)
    kind = loaded.kind
    record = {"head": kind, "target": str(engine.model), "target_digest": checkpoint.digest(), "imported_from": head}
    try:
        save_head(loaded, out, record, stored_dtype(directory))
    except OSError as error:
        raise ConfigError(f"--out is {out}, which cannot be written: {error.strerror}.") from error
    about = ""
    told: dict[str, Any] = {"directory": str(out), **record}
    if isinstance(loaded, EagleHead | BlockHead):
        told |= {"taps": list(loaded.config.taps), "draft_vocab_size": loaded.config.draft_vocab_size}
        if not isinstance(loaded, EagleHead) or loaded.config.side_by_side:
            about = f", reads the inputs of layers {', '.join(map(str, loaded.config.taps))}"
        about += f", can say {loaded.config.draft_vocab_size} of {loaded.config.vocab_size} tokens"
    if as_json:
        print_json(told)
        return
    typer.echo(f"{out}: {kind}{about}. Try it: headstart bench -m {engine.model} --drafters {kind}:model={out}")
