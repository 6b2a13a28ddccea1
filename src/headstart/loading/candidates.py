"""Who could guess for a model: what came with it, lies beside it or in the hub's cache, and what is published."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from headstart.backends.native.few_bits import BITS_TAKEN
from headstart.backends.native.kit import NativeKit
from headstart.backends.native.loader import load_library
from headstart.backends.native.supported import supports
from headstart.backends.torch.kit import TorchKit
from headstart.drafting.head_files.loading import kind_in, load_head
from headstart.drafting.head_files.shipped import TargetIdentity, shipped_heads, target_shape
from headstart.drafting.method import AS_THE_MODEL, NATIVE, passes_of
from headstart.drafting.registry import available_drafters, default_for, drafter_name, is_drafter
from headstart.errors import HeadstartError
from headstart.loading.beside import are_called_so, config_for, modules_beside, sound_modules
from headstart.loading.own_bits import SAVES
from headstart.loading.published import PUBLISHED
from headstart.loading.roles import SIDECARS, role_of
from headstart.loading.siblings import bytes_at, sibling_at
from headstart.models.checkpoint import Checkpoint, open_modules
from headstart.models.config import ModelConfig
from headstart.models.families.module_layouts import layouts_of_modules
from headstart.models.files import may_be_read, read_json
from headstart.models.locating import has_safetensors
from headstart.text.tokenizer import Tokenizer

_MODULES = ("num_nextn_predict_layers", "nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Where configurations count multi-token modules."""


class Standing(StrEnum):
    """Whether a candidate can guess."""

    FOUND = "found"
    ABSENT = "absent"
    """Known, and not on this machine."""
    REFUSED = "refused"


@dataclass(frozen=True)
class Candidate:
    """Something that could guess for a model."""

    drafter: str
    """Who would run it; empty: nobody."""
    where: str
    standing: Standing
    nbytes: int
    """Of its files."""
    said: str
    """How it guesses or may be had, or why it cannot."""
    runs_in: str = ""
    """What would compute a head or modules on the processor, and why that is PyTorch where it is."""


def candidates(checkpoint: Checkpoint, config: ModelConfig, tokenizer: Tokenizer) -> list[Candidate]:
    """All of them, in the order in which the default drafter looks for them, those that only copy last. Nothing is
    downloaded."""
    found = [*_modules(checkpoint, config), *_installed(checkpoint, config, tokenizer)]
    found += [each for each in _broken(checkpoint.path) if each.where not in {each.where for each in found}]
    for where, path in (*beside(checkpoint.path), *cached()):
        if path.resolve() != checkpoint.path.resolve() and where not in {each.where for each in found}:
            found += _examined(where, path, checkpoint, config, tokenizer)
    held = {each.where for each in found}
    parameters = sum(map(math.prod, checkpoint.shapes().values()))
    found += [
        Candidate("", each.hub_id, Standing.ABSENT, each.nbytes, each.said)
        for each in PUBLISHED
        if each.fits(config, parameters) and each.hub_id not in {*held, checkpoint.name}
    ]
    if config.encoder is None:
        found.append(_itself(checkpoint, config))
    copies = [method for method in available_drafters().values() if method.free]
    return [*found, *(Candidate(each.name, "–", Standing.FOUND, 0, each.summary) for each in copies)]


@dataclass(frozen=True)
class HeadAtHand:
    """A head that nobody has named."""

    kind: str
    """Empty: a damaged file, whose kind cannot be told."""
    where: str
    path: Path
    unfit: str = ""
    """Why it is not even read."""

    def misfit(self, target: ModelConfig) -> str:
        """Why it does not guess for a target, a sentence; empty: it does."""
        try:
            self.unfit or load_head(self.path, target)
        except HeadstartError as error:
            return str(error)
        return self.unfit


def heads_at_hand(model: Path) -> Iterator[HeadAtHand]:
    """What lies beside a model or in the hub's cache and holds a head. Of files only those are opened that are called
    like sidecars."""
    for where, path in (*beside(model), *cached()):
        called_so = is_called_so(path)
        kind = kind_in(path) if called_so or path.is_dir() else None
        if kind is not None:
            yield HeadAtHand(kind, where, path, _pickled(where, path))
        elif called_so and not are_called_so(Path(path.name)):
            try:
                role_of(path)
            except HeadstartError as error:
                yield HeadAtHand("", where, path, str(error))


def _pickled(where: str, path: Path) -> str:
    """Why a head is not used that nobody has named; empty: its weights run no code."""
    if path.is_file() or has_safetensors(path) or not any(path.glob("*.bin")):
        return ""
    return f"its weights are pickled, which are read where it is named alone: --draft-model {where}."


def is_called_so(path: Path) -> bool:
    """Whether a file is called like those that guess."""
    return path.is_file() and _is_name_of_one(path.name)


def _is_name_of_one(name: str) -> bool:
    return any(part in name.lower() for part in SIDECARS)


def _broken(model: Path) -> Iterator[Candidate]:
    """What is called like those that guess, beside a model or in the hub's cache, and is not there to be read."""
    from huggingface_hub import constants

    hub = Path(constants.HF_HUB_CACHE)
    try:
        near = (model if model.is_dir() else model.parent).glob("*")
        paths = [*near, *hub.glob("models--*/snapshots/*/*"), *hub.glob("models--*/blobs/*.incomplete")]
    except OSError:
        return
    for path in sorted(paths):
        within = path.relative_to(hub).parts[0] if path.is_relative_to(hub) else ""
        if _is_name_of_one(within + path.name):
            if path.suffix == ".incomplete":
                yield Candidate("", str(path), Standing.REFUSED, 0, "its download broke off; fetch it again")
            elif path.is_symlink() and not path.exists():
                yield Candidate("", str(path), Standing.REFUSED, 0, "it is a link to nothing; fetch it again")


def beside(model: Path) -> Iterator[tuple[str, Path]]:
    """Other files and directories of a model's folder that may hold a model or a head."""
    for path in _entries(model if model.is_dir() else model.parent, "*"):
        is_file = path.suffix == ".gguf" and path.is_file() and (model.is_file() or is_called_so(path))
        if path != model and (is_file or (path / "config.json").is_file()):
            yield str(path), path


def cached() -> Iterator[tuple[str, Path]]:
    """Repositories of the hub that were downloaded: name and newest snapshot; without safetensors, also GGUF files."""
    from huggingface_hub import constants

    for repository in _entries(Path(constants.HF_HUB_CACHE), "models--*--*"):
        snapshots = _entries(repository, "snapshots/*")
        described = [path for path in snapshots if (path / "config.json").is_file()]
        newest = max(described or snapshots, key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            continue
        if described:
            yield repository.name.removeprefix("models--").replace("--", "/", 1), newest
        if not described or not has_safetensors(newest):
            yield from ((str(path), path) for path in _entries(newest, "*.gguf") if path.is_file())


def _entries(folder: Path, pattern: str) -> list[Path]:
    """Those that may be read and that a link leads to; none where the folder may not be read."""
    try:
        return sorted(path for path in folder.glob(pattern) if may_be_read(path))
    except OSError:
        return []


def _modules(checkpoint: Checkpoint, config: ModelConfig) -> Iterator[Candidate]:
    drafter, shapes = default_for("module"), checkpoint.shapes()
    held: list[str] = []
    for names in layouts_of_modules(config, checkpoint.kind, shapes):
        first = f"{names.layer.format(i=names.number(0, config))}."
        held = held or [name for name in shapes if name.startswith(first)]
    size = int(sum(math.prod(shapes[name]) * checkpoint.stored_bits(name) for name in held) / 8)
    if held:
        yield _readable(checkpoint, checkpoint.path, config, size, "multi-token modules of the model")
        return
    refused: list[tuple[Path, str]] = []
    beside = modules_beside(checkpoint.path, config, lambda *why: refused.append(why), cached())
    for file, reason in refused:
        yield Candidate(drafter, str(file), Standing.REFUSED, bytes_at(file), reason)
    if beside is not None:
        said = f"multi-token modules {place_of(beside, checkpoint.path)}: --draft-model {beside}"
        yield _readable(open_modules(beside), beside, config, bytes_at(beside), said)
        return
    text = checkpoint.metadata.get("text_config")
    entries = {**checkpoint.metadata, **(text if isinstance(text, dict) else {})}
    if any(value and key.rpartition(".")[2] in _MODULES for key, value in entries.items()):
        said = "multi-token modules, which this file leaves out: the publisher's own files have them"
        yield Candidate(drafter, str(checkpoint.path), Standing.ABSENT, 0, said)


def _itself(checkpoint: Checkpoint, config: ModelConfig) -> Candidate:
    """The model in four bits, or why that saves nothing or cannot be computed."""
    drafter, shapes = default_for("target"), checkpoint.shapes()
    sizes = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) > 1}
    sizes = {name: size for name, size in sizes.items() if shapes[name][0] != config.vocab_size}
    stored = sum(size * checkpoint.stored_bits(name) for name, size in sizes.items()) / max(sum(sizes.values()), 1)
    taken = BITS_TAKEN[4]
    if unfit := supports(config) or ("" if load_library() else "there is none here"):
        said = f"the native pass alone runs it, and {unfit}"
    elif taken > SAVES * stored:
        said = f"the file's weights take {stored:.1f} bits each, and in 4 bits {taken:.1f}; --drafter self:bits=3 saves"
    else:
        return Candidate(drafter, "–", Standing.FOUND, 0, available_drafters()[drafter].summary)
    return Candidate(drafter, "–", Standing.REFUSED, 0, said)


def place_of(file: Path, model: Path) -> str:
    """Where modules lie that are in none of a model's own files."""
    return (
        "beside the model" if file.is_relative_to(model if model.is_dir() else model.parent) else "in the hub's cache"
    )


def _readable(checkpoint: Checkpoint, path: Path, config: ModelConfig, size: int, said: str) -> Candidate:
    """Modules that a file holds, or why they cannot be read."""
    drafter = default_for("module")
    try:
        modules = sound_modules(checkpoint, config_for(checkpoint, config), torch.float32)
    except HeadstartError as error:
        return Candidate(drafter, str(path), Standing.REFUSED, size, str(error))
    return Candidate(drafter, str(path), Standing.FOUND, size, said, _runs_in(drafter, modules, config))


def _runs_in(drafter: str, head: object, target: ModelConfig) -> str:
    """What computes a head or modules beside a target on the processor."""
    passes, library = passes_of(drafter), load_library()
    if passes is not None:
        return (TorchKit() if library is None else NativeKit(library)).where(passes, head)
    return AS_THE_MODEL if library is None or supports(target) else NATIVE


def _installed(checkpoint: Checkpoint, config: ModelConfig, tokenizer: Tokenizer) -> Iterator[Candidate]:
    identity = TargetIdentity(target_shape(config), checkpoint.digest, tokenizer.fingerprint)
    heads = shipped_heads(identity)
    for kind, head in heads.by_kind.items():
        runs_in = _runs_in(kind, load_head(head.directory, config), config)
        yield Candidate(kind, str(head.directory), Standing.FOUND, bytes_at(head.directory), head.why, runs_in)
    for kind, why in heads.near.items():
        yield Candidate(kind, "–", Standing.REFUSED, 0, why)


def _examined(
    where: str, path: Path, checkpoint: Checkpoint, config: ModelConfig, tokenizer: Tokenizer
) -> Iterator[Candidate]:
    """A head, or a smaller model of the target's kin; other models of the cache are nobody's business."""
    try:
        if path.is_dir():
            read_json(path / "config.json")
    except HeadstartError as error:
        yield Candidate("", where, Standing.REFUSED, 0, str(error))
        return
    size, kind = bytes_at(path), kind_in(path)
    runs = drafter_name(kind) if kind is not None and is_drafter(kind) else ""
    try:
        if kind is not None and (only := _pickled(where, path)):
            yield Candidate(runs, where, Standing.REFUSED, size, only)
        elif kind is not None:
            runs_in = _runs_in(runs, load_head(path, config), config)
            yield Candidate(runs, where, Standing.FOUND, size, f"{kind} head: --draft-model {where}", runs_in)
        elif (role := role_of(path)) is not None:
            if path.parent == checkpoint.path.parent:
                yield Candidate("", where, Standing.REFUSED, size, f"it is {role}")
        elif (sibling := sibling_at(path, checkpoint, config, tokenizer)) is not None:
            standing = Standing.REFUSED if sibling.unfit else Standing.FOUND
            said = sibling.unfit or f"a smaller model of the same tokenizer: --draft-model {where}"
            yield Candidate(default_for("model"), where, standing, size, said)
    except HeadstartError as error:
        if kind is not None or is_called_so(path):
            yield Candidate(runs, where, Standing.REFUSED, size, str(error))
