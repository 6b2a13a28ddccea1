"""One strict loader for all formats of draft heads, told apart by their files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from headstart.drafting.heads.files import CONFIG_FILE, MEDUSA_FILES, RECORD_KEY, read_description, read_tensors
from headstart.drafting.methods.dflash.files import DEEPSPEC_ARCHITECTURE, SPECULATORS_DSPARK, read_block
from headstart.drafting.methods.dflash.files import NESTED as BLOCK_KEY
from headstart.drafting.methods.dflash.head import KIND as BLOCK_KIND
from headstart.drafting.methods.dflash.head import BlockHead
from headstart.drafting.methods.eagle.files import SPECULATORS_PARALLEL, guesses_in_parallel, read_eagle
from headstart.drafting.methods.eagle.head import PARALLEL_KIND, EagleHead
from headstart.drafting.methods.lookahead_embeddings.head import KIND as LOOKAHEAD_KIND
from headstart.drafting.methods.lookahead_embeddings.head import LookaheadEmbeddings, read_lookahead
from headstart.drafting.methods.medusa.files import KIND_KEY, read_medusa, read_parallel
from headstart.drafting.methods.medusa.head import ParallelHeads
from headstart.errors import CheckpointError
from headstart.models.aliases import ALIASES
from headstart.models.config import ModelConfig
from headstart.models.files import exists, local_path
from headstart.models.locating import INDEX_FILE, SINGLE_FILE
from headstart.models.safetensors_files import SafetensorsFiles

Head = EagleHead | BlockHead | ParallelHeads | LookaheadEmbeddings
HeadFormat = Literal["eagle", "eagle3", "dflash", "deepspec", "speculators", "medusa", "headstart"]


_SPECULATORS_KEY = "speculators_model_type"
_BLOCKS = (BLOCK_KIND, SPECULATORS_DSPARK)
"""Types of speculators that are block heads."""


class UnknownHeadError(CheckpointError):
    """A directory holds no head in a known format: another kind of model, perhaps."""


def load_head(directory: Path | str, target: ModelConfig) -> Head:
    """A head for ``target`` from a directory in any format that is known, float32 on the CPU.

    Raises:
        CheckpointError: no such directory, an unknown format or kind of head, a head of another target's size, or
            tensors that are missing, surplus or mis-shaped (all named).
    """
    path = local_path(directory)
    if not exists(path) or not path.is_dir():
        raise CheckpointError(f"{path} is no directory; name the directory of a draft head.")
    description, tensors = read_description(path), read_tensors(path)
    source = str(path)
    kind = detect_format(path, description, tensors)
    if kind == "medusa":
        return read_medusa(tensors, target, source)
    if kind == "headstart" and description[KIND_KEY] == LOOKAHEAD_KIND:
        return read_lookahead(description, tensors, target, source)
    if kind == "headstart":
        return read_parallel(description, tensors, target, source)
    if kind == "dflash" or kind == "deepspec":
        return read_block(kind, description, tensors, target, source)
    if kind == "speculators" and description[_SPECULATORS_KEY] in _BLOCKS:
        return read_block(kind, description, tensors, target, source)
    return read_eagle(kind, description, tensors, target, source)


def is_whole_model(model: str) -> bool:
    """Whether ``model`` names a model that is there, and no directory of a draft head, as far as files tell before
    their weights are read.

    Raises:
        CheckpointError: a file of it is damaged.
    """
    path = Path(model).expanduser()
    if model in ALIASES or path.is_file():
        return True
    if not (path / CONFIG_FILE).is_file():
        return False
    try:
        check_format(path)
    except UnknownHeadError:
        return True
    return False


def check_format(directory: Path) -> None:
    """Find out, before any weights are read, that a directory holds no head.

    Raises:
        CheckpointError: as ``load_head``, as far as names tell.
    """
    description = read_description(directory)
    # Of pickled weights no name is known before they are read; whole models are not read from them.
    if (directory / SINGLE_FILE).is_file() or (directory / INDEX_FILE).is_file():
        detect_format(directory, description, SafetensorsFiles(directory).shapes().keys())


def kind_of(head: Head) -> str:
    """What ``headstart train`` calls such a head: "eagle3", "p-eagle", "eagle", "dflash", "medusa", ..."""
    match head:
        case BlockHead():
            return BLOCK_KIND
        case EagleHead():
            return head.config.kind
        case ParallelHeads():
            return head.config.kind
    return LOOKAHEAD_KIND


def kind_in(directory: Path) -> str | None:
    """The kind of the head in a directory, as ``kind_of`` has it, before its weights are read; None where that does not
    tell: no head, or nothing in a known format."""
    try:
        description = read_description(directory)
        is_named = (directory / SINGLE_FILE).is_file() or (directory / INDEX_FILE).is_file()
        found = detect_format(directory, description, SafetensorsFiles(directory).shapes() if is_named else ())
    except CheckpointError:
        return None
    if found == "speculators":
        named = str(description[_SPECULATORS_KEY])
        return {SPECULATORS_PARALLEL: PARALLEL_KIND, SPECULATORS_DSPARK: BLOCK_KIND}.get(named, named)
    if found == "deepspec":
        return BLOCK_KIND
    if found == "eagle3" and guesses_in_parallel(description):
        return PARALLEL_KIND
    return str(description[KIND_KEY]) if found == "headstart" else found


def trained_for(directory: Path) -> tuple[str, str] | None:
    """Name and digest of the target that a head was trained for, where its description says so."""
    record = read_description(directory).get(RECORD_KEY)
    if not isinstance(record, dict) or not isinstance(record.get("target_digest"), str):
        return None
    return str(record.get("target")), record["target_digest"]


def trained_as(model: str) -> str | None:
    """What ``headstart train`` was asked for, of a directory that it wrote; None: it wrote none of this name."""
    path = Path(model).expanduser()
    if not (path / CONFIG_FILE).is_file():
        return None
    record = read_description(path).get(RECORD_KEY)
    return str(record.get("head")) if isinstance(record, dict) else None


def detect_format(directory: Path, description: Mapping[str, Any], tensors: Collection[str]) -> HeadFormat:
    """The format of a head's files; ``tensors``: their names.

    Raises:
        UnknownHeadError: none that is known.
        CheckpointError: a kind of head that is not read.
    """
    if KIND_KEY in description:
        return "headstart"
    kind = description.get(_SPECULATORS_KEY)
    if kind is not None:
        if kind not in ("eagle3", "eagle", SPECULATORS_PARALLEL, *_BLOCKS):
            raise CheckpointError(
                f"{directory} holds a speculator of type {kind!r}; of this format eagle3, peagle, eagle, dflash and "
                "dspark can be read."
            )
        return "speculators"
    if BLOCK_KEY in description:
        return "dflash"
    if description.get("architectures") == [DEEPSPEC_ARCHITECTURE]:
        return "deepspec"
    if "medusa_num_heads" in description or any((directory / name).exists() for name in MEDUSA_FILES):
        return "medusa"
    names = {name.removeprefix("model.") for name in tensors}
    if any(name.startswith("midlayer.") for name in names) or "draft_vocab_size" in description:
        return "eagle3"
    if "fc.weight" in names:
        return "eagle"
    raise UnknownHeadError(
        f"{directory} is of no known format (EAGLE, EAGLE-3, DFlash, DSpark, speculators, Medusa, Headstart); "
        "name the directory of a draft head, or a drafter that runs whole models."
    )
