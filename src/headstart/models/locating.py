"""Finding a model by alias, path or hub id. It imports nothing heavy: what is not there is refused at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from headstart.errors import CheckpointError, ConfigError, closest
from headstart.models.aliases import ALIASES
from headstart.models.files import exists, local_path

INDEX_FILE, SINGLE_FILE = "model.safetensors.index.json", "model.safetensors"
SETTINGS_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Where some quantisers say beside ``config.json`` what they have done."""
GGUF_MAGIC = b"GGUF"
"""How such files begin, whatever they are called: those that Ollama keeps have names without an ending."""
_UNFINISHED = (".part", ".partial", ".incomplete", ".crdownload", ".download", ".tmp", ".aria2")
"""How programs end the names of files that they are still fetching."""
_PIECE = re.compile(r"(.+\.gguf)([-.](?:split-|part[-_]?))[a-z0-9]+")
"""Of a file that was cut by bytes, because it was too large for a host."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = [
    *("config.json", "generation_config.json", *SETTINGS_FILES),
    *("model*.safetensors", "mtp*.safetensors", "nextn*.safetensors", "model.safetensors.index.json"),
    *("chat_template.jinja", "additional_chat_templates/*.jinja"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "target_vocab.json"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm"),
    "*.py",  # run where that is asked for
    "adapter_config.json",  # to be refused
]
_PICKLED_HUB_FILES = ["pytorch_model*.bin", "pytorch_model.bin.index.json", "medusa_lm_head.*"]
"""Fetched where there is nothing better."""


def locate(name: str, revision: str | None = None, field: str = "model") -> Path:
    """The file or directory of a model, fetched where it is on the hub and not cached yet.

    ``name``, ``revision``: as for ``open_checkpoint``. ``field``: what is named, for messages.

    Raises:
        CheckpointError: there is no such model, or it cannot be fetched.
        ConfigError: ``revision`` was given for a local path.
    """
    alias = ALIASES.get(name)
    if alias is not None:
        installed = None if revision else alias.installed_file()
        return installed or fetch(alias.hub_id, revision, mend=f"install it: {alias.install}")
    path = local_path(name)
    if name and exists(path):
        if revision is not None:
            raise ConfigError(f"revision is {revision!r}, but model {name!r} is a local path; leave revision out.")
        return path
    if is_hub_id(name) and path.suffix != ".gguf":
        return fetch(name, revision, mend="check the name, or download it elsewhere and name its directory")
    near = closest(name, ALIASES)
    raise CheckpointError(
        f"{field} is {name!r}, which does not exist; {f'did you mean {near!r}? Else ' if near else ''}"
        f"give a directory, a .gguf file, a hub id (org/name) or an alias ({', '.join(sorted(ALIASES))})."
    )


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a repository on the hub ("org/name")."""
    return _HUB_ID.fullmatch(name) is not None


def newest_snapshot(hub_id: str, whole: bool = False) -> Path | None:
    """What was downloaded last of a repository with a configuration, ``whole``: and weights; None: nothing. The hub is
    not asked."""
    from huggingface_hub import constants

    found = Path(constants.HF_HUB_CACHE).glob(f"models--{hub_id.replace('/', '--')}/snapshots/*/config.json")
    if whole:
        found = (path for path in found if has_safetensors(path.parent) or any(path.parent.glob("*.bin")))
    return max((path.parent for path in found), key=lambda path: path.stat().st_mtime, default=None)


def fetch(hub_id: str, revision: str | None, mend: str, files: Sequence[str] = _HUB_FILES) -> Path:
    """The local snapshot of a hub repository, downloaded where it is not cached yet.

    Args:
        mend: what to do if it cannot be had, as the end of a sentence.
        files: patterns of those that are wanted.

    Raises:
        CheckpointError: there is no such repository, or it cannot be fetched.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(hub_id, revision=revision, allow_patterns=list(files)))
        if files is _HUB_FILES and not has_safetensors(found):
            found = Path(
                snapshot_download(hub_id, revision=revision, allow_patterns=[*_HUB_FILES, *_PICKLED_HUB_FILES])
            )
        return found
    except LocalEntryNotFoundError as error:
        # A snapshot that was fetched by its commit's name: no branch of the cache leads there.
        if revision is None and files is _HUB_FILES and (kept := newest_snapshot(hub_id, whole=True)):
            return kept
        raise CheckpointError(
            f"model {hub_id!r} is neither a local path nor cached, and the hub cannot be reached; {mend}."
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        first_line = str(error).strip().split("\n", 1)[0]
        raise CheckpointError(f"model {hub_id!r} cannot be fetched from the hub ({first_line}); {mend}.") from error


def has_safetensors(directory: Path) -> bool:
    """Whether a directory holds its weights so.

    Raises:
        CheckpointError: it must not be looked into.
    """
    return exists(directory / INDEX_FILE) or exists(directory / SINGLE_FILE)


def require_model(path: Path) -> None:
    """Refuse what can be no model, whatever lies in it.

    Raises:
        CheckpointError: neither a GGUF file nor a directory with a configuration; or not all of a file, by its name.
    """
    if not path.is_dir():
        _refuse_pieces(path)
        if path.suffix != ".gguf" and not _begins_as_gguf(path):
            raise CheckpointError(
                f"{path} is neither a .gguf file nor a directory; name the model's directory instead."
            )
    elif not (path / "config.json").exists():
        files = sorted(file.name for file in path.glob("*.gguf"))
        if files:
            raise CheckpointError(f"{path} is a directory of GGUF files; name one of them: {', '.join(files)}.")
        raise CheckpointError(f"{path} has no config.json; name a directory that holds a model.")


def _begins_as_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def _refuse_pieces(path: Path) -> None:
    if path.suffix in _UNFINISHED:
        whole = path.name.removesuffix(path.suffix)
        raise CheckpointError(f"{path} is a download that has not ended; fetch it again, and name {whole}.")
    piece = _PIECE.fullmatch(path.name)
    if piece is not None:
        raise CheckpointError(
            f"{path} is a piece of a file; join all of them in order (cat {piece[1]}{piece[2]}* > {piece[1]}) and name "
            f"{piece[1]}."
        )
