"""``headstart derive``: a small draft model out of some of the target's own layers."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli import options
from headstart.cli.asking import Named
from headstart.cli.option_groups import with_groups
from headstart.errors import ConfigError
from headstart_train.commands import folders
from headstart_train.commands.layers import layer_choice


class Dtype(StrEnum):
    """What tensors are written in."""

    BF16 = "bf16"
    FP32 = "fp32"


@with_groups
def derive(
    *,
    layers: Annotated[
        str,
        typer.Option(
            help="How many, evenly spread with the first and the last among them; or which, like 0,1,14,29.",
            metavar="N|LIST",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.", metavar="DIR", callback=folders.new_folder)],
    engine: Named,
    dtype: Annotated[Dtype, typer.Option(help="Number format of the matrices written.")] = Dtype.BF16,
    as_json: options.Json = False,
) -> None:
    """Make a draft model of some of a model's layers, as a folder that Headstart and transformers read.

    Nothing is trained, so it guesses worse than a real small model would; it needs no download.

    Examples:

        headstart derive --layers 10 --out small

        headstart derive --model org/name --layers 0,1,2,31 --out small

        headstart generate "Once upon a time" --drafter draft-model --draft-model small --compare
    """
    wanted = layer_choice(layers)

    import torch

    from headstart.cli.json_output import print_json
    from headstart.models.checkpoint import open_checkpoint
    from headstart.models.layer_selection import select_layers
    from headstart.models.weight_loading import load_decoder
    from headstart.text.tokenizer import Tokenizer
    from headstart_train.files.models import save_model
    from headstart_train.files.tokenizers import save_tokenizer
    from headstart_train.first_steps.draft_model import choose_layers

    checkpoint = open_checkpoint(str(engine.model), engine.revision)
    config, weights = load_decoder(checkpoint, torch.bfloat16 if dtype is Dtype.BF16 else torch.float32)
    chosen = choose_layers(wanted, config.num_layers)
    ends = (*config.eos_token_ids, *Tokenizer.from_checkpoint(checkpoint).eos_token_ids)
    small, its_weights = select_layers(replace(config, eos_token_ids=tuple(dict.fromkeys(ends))), weights, chosen)
    try:
        save_model(small, its_weights, out)
        save_tokenizer(checkpoint, out)
    except OSError as error:
        raise ConfigError(f"--out is {out}, which cannot be written: {error.strerror}.") from error
    if as_json:
        print_json({"directory": str(out), "layers": list(chosen), "of": config.num_layers, "dtype": dtype.value})
        return
    typer.echo(f"Wrote {out}: layers {', '.join(map(str, chosen))} of {config.num_layers}.", err=True)
