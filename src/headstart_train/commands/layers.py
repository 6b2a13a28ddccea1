"""Layers of a model as a command names them."""

from __future__ import annotations

import typer


def layer_choice(text: str) -> int | tuple[int, ...]:
    """Layers as ``--layers`` names them: how many, or which.

    Raises:
        BadParameter: neither a number nor a list of them.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a number nor a list of them, like 10 or 0,1,14,29.", param_hint="--layers"
        ) from None
    return numbers if "," in text else numbers[0]
