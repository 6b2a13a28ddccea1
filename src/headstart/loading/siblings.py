"""Small models of a target's own tokenizer, which guess for it by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from headstart.common.memory import readable
from headstart.drafting.context import SmallModel
from headstart.drafting.head_files.loading import kind_in
from headstart.errors import HeadstartError
from headstart.loading.roles import role_of
from headstart.models.checkpoint import Checkpoint, open_checkpoint
from headstart.models.config import ModelConfig
from headstart.models.locating import has_safetensors
from headstart.models.weight_loading import config_of, load_decoder
from headstart.text.tokenizer import Tokenizer

_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
SMALLER = 4
"""So many times a small model's bytes a target has at least: a guess costs about a pass's share."""


@dataclass(frozen=True)
class Sibling:
    """A smaller model that is told by its kind or vocabulary to be a kin of the target's."""

    nbytes: int
    unfit: str
    """Why it cannot guess, a sentence without its end; empty: it can."""


def bytes_at(path: Path) -> int:
    """Bytes of a file, or of the weights in a directory."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.suffix in _WEIGHTS and file.is_file())


def sibling_at(path: Path, target: Checkpoint, config: ModelConfig, tokenizer: Tokenizer) -> Sibling | None:
    """What lies at a path, as a draft model of a target; None: a model of another kind, as large as the target, or
    nothing that can be read. Of weights, headers alone are read.

    Args:
        target: open.
        config: the target's.
        tokenizer: the target's.
    """
    size, most = bytes_at(path), bytes_at(target.path)
    if not 0 < size < most:
        return None
    try:
        draft = open_checkpoint(path)
        own = config_of(draft)
    except HeadstartError:
        return None
    if own.family != config.family and own.vocab_size != config.vocab_size:
        return None
    return Sibling(size, _unfit(draft, own, tokenizer, size, most))


def find_sibling(
    places: Iterable[tuple[str, Path]], target: Checkpoint, config: ModelConfig, tokenizer: Tokenizer
) -> SmallModel | None:
    """The smallest of those that fit, in formats that run no code; None: there is none.

    Args:
        places: what each is called, and where it is.
    """
    found: list[tuple[int, str, Path]] = []
    for where, path in places:
        if path.resolve() == target.path.resolve() or not (path.is_file() or has_safetensors(path)):
            continue
        try:
            plain = kind_in(path) is None and role_of(path) is None
        except HeadstartError:
            continue
        sibling = sibling_at(path, target, config, tokenizer) if plain else None
        if sibling is not None and not sibling.unfit:
            found.append((sibling.nbytes, where, path))
    if not found:
        return None
    size, where, path = min(found)
    return SmallModel(f"{where} ({readable(size)})", path)


def _unfit(draft: Checkpoint, own: ModelConfig, tokenizer: Tokenizer, size: int, most: int) -> str:
    if size * SMALLER > most:
        return f"it has more than a quarter of this model's {readable(most)}, so that a guess would cost too much"
    if own.encoder is not None:
        return "it has an encoder"
    try:
        other = Tokenizer.from_checkpoint(draft)
        difference = tokenizer.compatible_with(other)
        if difference is not None:
            return f"it has another tokenizer: {difference}"
        if tokenizer.merges != other.merges:
            return "its tokenizer merges other pieces of words"
        load_decoder(draft, torch.bfloat16)
    except HeadstartError as error:
        return str(error).removesuffix(".")
    return ""
