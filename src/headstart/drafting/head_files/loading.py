"""One strict loader for all formats of draft heads: the methods' folders tell whose files they are, and read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from headstart.drafting.heads.files import CONFIG_FILE, RECORD_KEY, read_description, read_tensors
from headstart.drafting.heads.formats import SPECULATORS_KEY, FoundHead, HeadFolder, TrainedHead
from headstart.drafting.heads.gguf_heads import ARCHITECTURE as GGUF_KEY
from headstart.drafting.method import brought_head_files, head_files, tensor_files
from headstart.errors import CheckpointError
from headstart.models.aliases import ALIASES
from headstart.models.config import ModelConfig
from headstart.models.families import holds_modules_alone
from headstart.models.files import exists, local_path, require_readable
from headstart.models.gguf_file import GgufFile
from headstart.models.locating import has_safetensors, is_hub_id, locate, newest_snapshot
from headstart.models.safetensors_files import SafetensorsFiles


class UnknownHeadError(CheckpointError):
    """A directory holds no head in a known format: another kind of model, perhaps."""


def load_head(directory: Path | str, target: ModelConfig) -> TrainedHead:
    """A head for ``target`` from a directory, or a hub's repository, in any format that is known, float32 on the CPU.

    Raises:
        CheckpointError: no such directory, an unknown format or kind of head, a head of another target's size, or
            tensors that are missing, surplus or mis-shaped (all named).
    """
    path = head_place(directory)
    _require_place(path)
    if path.is_dir():
        description, tensors = read_description(path), read_tensors(path, tensor_files)
        files = HeadFolder(path, description, tensors)
        found, module = _find(files)
        window = _window_in(description)
    else:
        file = GgufFile(path)
        files = HeadFolder(path, file.metadata, file.tensors)
        found, module = _find(files)
        tensors = {name: file.read(name) for name in file.tensors}
        window = None
    head: TrainedHead = module.read(found, files, tensors, target)
    head.window = window
    return head


def head_place(name: Path | str) -> Path:
    """Where a head lies; one that is named by its repository on the hub is fetched if it is not cached yet.

    Raises:
        CheckpointError: it cannot be fetched, or not be read.
    """
    path = local_path(name)
    require_readable(path)
    if exists(path) or not is_hub_id(str(name)):
        return path
    return newest_snapshot(str(name)) or locate(str(name))


def is_whole_model(model: str) -> bool:
    """Whether ``model`` names a model that is there, and no directory of a draft head, as far as files tell before
    their weights are read.

    Raises:
        CheckpointError: a file of it is damaged.
    """
    if model in ALIASES:
        return True
    path = head_place(model)
    if not path.is_file() and not (path / CONFIG_FILE).is_file():
        return False
    if path.is_file() and not _is_gguf(path):
        return True
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
    _require_place(directory)
    if _is_gguf(directory):
        _find(_gguf_folder(directory))
        return
    description = read_description(directory)
    # Of pickled weights no name is known before they are read; whole models are not read from them.
    if has_safetensors(directory):
        _find(HeadFolder(directory, description, SafetensorsFiles(directory).shapes().keys()))


def _require_place(path: Path) -> None:
    if not exists(path) or not (path.is_dir() or _is_gguf(path)):
        what = "is no directory" if exists(path) else "does not exist"
        raise CheckpointError(f"{path!s:.200} {what}; name the directory, or the GGUF file, of a draft head.")


def is_modules_alone(model: str) -> bool:
    """Whether ``model`` names a file or folder of multi-token modules without a decoder.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = head_place(model)
    if _is_gguf(path):
        return holds_modules_alone(GgufFile(path).tensors)
    named = has_safetensors(path) or (path.suffix == ".safetensors" and path.is_file())
    return named and holds_modules_alone(SafetensorsFiles(path).shapes())


def kind_in(directory: Path) -> str | None:
    """The kind of the head in a directory (``TrainedHead.kind``), before its weights are read; None where that does
    not tell: no head, or nothing in a known format."""
    try:
        if _is_gguf(directory):
            return _find(_gguf_folder(directory))[0].kind
        description = read_description(directory)
        names: Collection[str] = ()
        if has_safetensors(directory):
            with suppress(CheckpointError):  # whoever reads the damaged file says so
                names = SafetensorsFiles(directory).shapes()
        return _find(HeadFolder(directory, description, names))[0].kind
    except CheckpointError:
        return None


def trained_for(directory: Path) -> tuple[str, str] | None:
    """Name and digest of the target that a head was trained for, where its description says so."""
    record = None if _is_gguf(directory) else read_description(directory).get(RECORD_KEY)
    if not isinstance(record, dict) or not isinstance(record.get("target_digest"), str):
        return None
    return str(record.get("target")), record["target_digest"]


def trained_as(model: str) -> str | None:
    """What ``headstart train`` was asked for, of a directory that it wrote; None: it wrote none of this name."""
    path = head_place(model)
    if not (path / CONFIG_FILE).is_file():
        return None
    record = read_description(path).get(RECORD_KEY)
    return str(record.get("head")) if isinstance(record, dict) else None


def _window_in(description: Mapping[str, Any]) -> int | None:
    """What a description recommends as ``TrainedHead.window``: by name, or as the longest texts of its training."""
    record = description.get(RECORD_KEY)
    if isinstance(record, dict):
        settings = record.get("settings")
        said = record.get("window", settings.get("length") if isinstance(settings, dict) else None)
    else:
        layers = description.get("transformer_layer_config")
        said = (layers if isinstance(layers, dict) else description).get("max_position_embeddings")
    return said if isinstance(said, int) and said > 0 else None


def _is_gguf(path: Path) -> bool:
    """Whether a head may be in this file."""
    return path.suffix == ".gguf" and path.is_file()


def _gguf_folder(path: Path) -> HeadFolder:
    file = GgufFile(path)
    return HeadFolder(path, file.metadata, file.tensors)


def _claimed(files: HeadFolder, modules: Sequence[Any]) -> tuple[FoundHead, Any] | None:
    """What the first module takes files for that knows their description, or else their tensors."""
    found = [(claim, module) for module in modules if (claim := module.find(files)) is not None]
    return min(found, key=lambda each: each[0].by_tensors, default=None)


def _find(files: HeadFolder) -> tuple[FoundHead, Any]:
    """What files are, and the module that reads them.

    Raises:
        UnknownHeadError: nothing that is known.
        CheckpointError: a kind of head that is not read.
    """
    modules = [import_module(each.module) for each in head_files()]
    best = _claimed(files, modules)
    if best is None or best[0].by_tensors:
        best = _claimed(files, [*modules, *(import_module(each.module) for each in brought_head_files())])
    if best is not None:
        return best
    kind = files.description.get(SPECULATORS_KEY)
    if kind is not None:
        *known, last = [name for module in modules for name in getattr(module, "SPECULATORS", ())]
        raise CheckpointError(
            f"{files.path} holds a speculator of type {kind!r}; of this format {', '.join(known)} and {last} can be "
            "read."
        )
    called = next((files.description[key] for key in (GGUF_KEY, "model_type") if key in files.description), "nothing")
    raise UnknownHeadError(
        f"{files.path} holds {called!r:.60}, which as a draft head is of no known format (EAGLE, EAGLE-3, DFlash, "
        "DSpark, speculators, Medusa, Headstart); name the directory of a draft head, or a drafter that runs whole "
        "models."
    )
